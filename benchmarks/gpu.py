"""What one GPU gives: decoding, training and whole steps, beside vLLM, TRL and the hardware.

    python benchmarks/gpu.py --model FOLDER --data gsm8k/train.jsonl --out docs/results/gpu.json

FOLDER is a model in the shape of Qwen2.5-1.5B (`gpu_shape.py` writes one with random weights), the
data GSM8K. Each part is a process of its own, so that its memory is its own; what is finished is
written to --out at once, and `--parts` chooses some (the others keep what --out holds):

    decode     DARE's decoder and `model.generate` on the same prompts, budgets and sampling
    vllm       vLLM on the same work (needs vllm; `gpu_vllm.py`)
    grpo dare  24 steps of each preset, nothing replayed: seconds by phase, memory
    trl_MODE   GRPOTrainer on the same model, prompts and number of rollouts (`gpu_trl.py`), where
               MODE is generate, paged or vllm; the fastest counts
    drift      ratios of rollouts scored twice by the same weights

Decoding and floor: every response has a budget and no end token, so all engines do the same work.
The floor is the time in which the bytes that a step must read (16-bit weights once, each row's keys
and values once) pass at the bandwidth of a large copy. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
PEAK = 989e12  # bf16, dense, of an H100 or H200 by its data sheet
VERSIONS = ("torch", "transformers", "triton", "liger-kernel", "vllm", "trl")
TRL = ("trl_generate", "trl_paged", "trl_vllm")
PARTS = ("decode", "vllm", "grpo", "dare", *TRL, "drift")
_HERE = Path(__file__).parent


def main() -> None:
    """Run the parts, derive the ratios, print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rows", type=int, default=32, help="rollouts of a micro-batch")
    parser.add_argument("--longest", type=int, default=400)
    parser.add_argument("--trl-steps", type=int, default=3, help="the first is not counted")
    parser.add_argument("--weights", default="random", help="what the folder holds, for the record")
    options = parser.parse_args()
    if options.part:
        run = trl_steps if options.part in TRL else globals()[f"part_{options.part}"]
        import torch

        made = run(options)
        device = torch.cuda.get_device_name()
        print(json.dumps({**made, "stamp": stamp(options.weights, device)}))
        return
    figures, failed = begun(options.out), list[str]()
    for name in options.parts.split(","):
        began = time.perf_counter()
        command = [sys.executable, __file__, *sys.argv[1:], "--part", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            print(f"{name}: failed with {done.returncode}", flush=True)
            print(done.stdout[-3000:], flush=True)
            failed.append(name)
            continue
        figures[name] = json.loads(lines[-1])
        print(f"{name}: {time.perf_counter() - began:.0f} s {lines[-1]}", flush=True)
        keep(options.out, {**figures, "figures": derived(figures)})
    print(json.dumps(derived(figures)))
    if failed:
        raise SystemExit(1)


def begun(out: Path) -> dict[str, Any]:
    """What --out holds of earlier calls, as they left it. `weights` and `versions` at its top are
    of parts from before each had a stamp."""
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8") if out.is_file() else "{}")
    return found


def stamp(weights: str, device: str) -> dict[str, Any]:
    """Of what, with what, where and when a part was measured."""
    return {
        "weights": weights,
        "versions": {name: one for name in VERSIONS if (one := version_of(name)) is not None},
        "device": device,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def version_of(name: str) -> str | None:
    """The version that is installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def keep(out: Path, figures: dict[str, Any]) -> None:
    """Write what there is by now."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def derived(found: dict[str, Any]) -> dict[str, Any]:
    """The figures that are asked for, of the parts that are there."""
    made: dict[str, Any] = {}
    decode, vllm = found.get("decode"), found.get("vllm")
    if decode:
        for rows in ("256", "1024"):
            if rows in decode["rows"]:
                made[f"decode_tok_s_{rows}"] = decode["rows"][rows]["tok_s"]
        made["decode_floor_share"] = decode["rows"]["256"]["floor_share"]
        made["decode_vs_generate"] = round(
            decode["rows"]["256"]["tok_s"] / decode["generate"]["tok_s"], 1
        )
    if decode and vllm:
        beside = {
            rows: round(decode["rows"][rows]["tok_s"] / one, 2)
            for rows, one in vllm["tok_s"].items()
            if rows in decode["rows"]
        }
        if beside:
            made["decode_vs_vllm"] = min(beside.values())
        made["decode_vs_vllm_by_rows"] = beside
    grpo, dare, trl = found.get("grpo"), found.get("dare"), fastest_trl(found)
    if grpo:
        made |= trained(grpo)
        made |= {name: grpo[name] for name in ("peak_gb", "plan_error")}
    if grpo and dare:
        made["dare_step_vs_grpo_step"] = round(dare["step_s"] / grpo["step_s"], 3)
        made["dare_vs_grpo_per_trained_token"] = round(
            (dare["step_s"] / dare["tokens_trained"]) / (grpo["step_s"] / grpo["tokens_trained"]), 3
        )
        made["own_share"] = dare["own_share"]
    if grpo and trl:
        made["tokens_per_s_vs_trl"] = round(grpo["generated_tok_s"] / trl["tokens_per_s"], 2)
        least = min(float(found[name]["peak_gb"]) for name in TRL if name in found)
        made["memory_vs_trl"] = round(grpo["peak_gb"] / least, 2)  # vLLM reserves what it may use
        made["trl_mode"] = trl["mode"]
    if "drift" in found:
        made["zero_drift_ess_share"] = found["drift"]["ess_share"]
    return made


def trained(part: dict[str, Any]) -> dict[str, Any]:
    """Rates of training with the optimiser's seconds in them: those of the phase `update` too,
    which also has what no other phase measures. Earlier parts have no such phase."""
    train = float(part["seconds"]["train"])
    share = train / (train + float(part["seconds"].get("update", 0.0)))
    return {
        "train_tok_s": round(part["train_tok_s"] * share),
        "train_response_tok_s": round(part["train_response_tok_s"] * share),
        "train_mfu": round(part["train_mfu"] * share, 3),
    }


def fastest_trl(found: dict[str, Any]) -> dict[str, Any] | None:
    """Of the modes of TRL that were measured, the one with the most tokens a second."""
    there = [found[name] for name in TRL if name in found]
    return max(there, key=lambda one: float(one["tokens_per_s"]), default=None)


# ---- decoding ----


def work(options: argparse.Namespace, rows: int) -> dict[str, Any]:
    """Prompts of the data as token ids, groups of 8, and a budget for each response."""
    from estimators_gpu import rows_of
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    prompts = []
    for row in rows_of(options.data)[: rows // 8]:
        turns = [{"role": "user", "content": row["prompt"]}]
        text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        prompts.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    rng = np.random.default_rng(0)
    budgets = np.clip(rng.normal(270, 90, rows), 60, options.longest).astype(int)
    return {"prompts": prompts, "group": 8, "max_tokens": budgets.tolist()}


def part_decode(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of DARE's decoder and of `model.generate`, and the floor."""
    import torch
    from transformers import AutoModelForCausalLM

    from dare.policy.generate import GenerationRequest, TransformersGenerator
    from dare_decoder import Sampling

    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16)
    model.to("cuda").eval()
    sampling = Sampling(0.6, 0.95)
    bandwidth = copy_bandwidth()
    made: dict[str, Any] = {"device": torch.cuda.get_device_name(), "copy_gb_s": bandwidth / 1e9}
    made["rows"] = {}
    config = model.config
    shared = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    token_bytes = 2 * config.num_hidden_layers * shared * 2
    weight_bytes = 2 * sum(p.numel() for p in model.parameters())
    for rows in (256, 1024):
        asked = work(options, rows)
        budgets = np.array(asked["max_tokens"])
        request = GenerationRequest(
            [np.array(prompt) for prompt in asked["prompts"]],
            np.repeat(np.arange(rows // 8), 8),
            budgets,
            np.arange(rows),
            0,
            0,
        )
        generator = TransformersGenerator(lambda: model, pad_id=0, end_ids=[], max_rows=1024)
        seconds = []
        for _ in range(4):
            torch.cuda.synchronize()
            began = time.perf_counter()
            generator.generate(request, sampling)
            seconds.append(time.perf_counter() - began)
        length = np.array([len(asked["prompts"][row // 8]) for row in range(rows)])
        read = (length * budgets + budgets * (budgets + 1) / 2).sum() * token_bytes
        floor = (read + weight_bytes * budgets.max()) / bandwidth
        best = float(np.median(seconds[1:]))
        made["rows"][str(rows)] = {
            "tokens": int(budgets.sum()),
            "first_s": round(seconds[0], 2),
            "seconds": [round(one, 3) for one in seconds[1:]],
            "tok_s": round(budgets.sum() / best),
            "floor_s": round(floor, 3),
            "floor_share": round(floor / best, 3),
            "paged": generator._paged,
        }
        del generator
        print(rows, made["rows"][str(rows)], file=sys.stderr, flush=True)
    made["generate"] = library(model, work(options, 256))
    return made


def library(model: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """`model.generate` on the same prompts; a row that is done is computed to the end."""
    import torch

    rows = [asked["prompts"][row // 8] for row in range(len(asked["max_tokens"]))]
    width, most = max(map(len, rows)), 100  # a hundred steps tell the rate
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, width - len(row) :] = torch.tensor(row)
        mask[place, width - len(row) :] = 1
    seconds = []
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        model.generate(
            input_ids=ids.cuda(),
            attention_mask=mask.cuda(),
            do_sample=True,
            temperature=0.6,
            top_p=0.95,
            top_k=0,
            max_new_tokens=most,
            min_new_tokens=most,
            pad_token_id=0,
        )
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    # Rows leave no batch early: of the tokens it computes, these many are asked for.
    useful = sum(asked["max_tokens"]) / (len(rows) * max(asked["max_tokens"]))
    whole = len(rows) * most / min(seconds)
    return {"tok_s": round(whole * useful), "tok_s_computed": round(whole), "steps": most}


def copy_bandwidth() -> float:
    """Bytes read and written a second by a large copy."""
    import torch

    source = torch.empty(1 << 30, dtype=torch.int32, device="cuda").random_()
    target = torch.empty_like(source)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        target.copy_(source)
    begin.record()
    for _ in range(10):
        target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    return 20 * source.nbytes / (begin.elapsed_time(end) / 1e3)


def part_vllm(options: argparse.Namespace) -> dict[str, Any]:
    """vLLM on the work of `decode`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(work(options, 1024), file)
    made = outside(
        "gpu_vllm.py", "--model", options.model, "--work", file.name, "--rows", "256,1024",
        "--max-new", str(options.longest), "--temperature", "0.6", "--top-p", "0.95",
    )  # fmt: skip
    made["tok_s"] = made["tokens_per_s"]
    return made


# ---- steps ----


def part_grpo(options: argparse.Namespace) -> dict[str, Any]:
    """Steps of the baseline."""
    return steps(options, "grpo")


def part_dare(options: argparse.Namespace) -> dict[str, Any]:
    """Steps of our method."""
    return steps(options, "dare")


def steps(options: argparse.Namespace, preset: str) -> dict[str, Any]:
    """Seconds by phase, tokens and memory of a step: means after the first three.

    `train_*` count the seconds of `train`; `derived` adds the optimiser's.
    """
    import torch
    from estimators_gpu import number_reward, rows_of

    from dare import DareConfig, DareTrainer
    from dare.training.workload import plan_recipe

    rows = rows_of(options.data)[:2048]
    for row in rows:
        del row["solution"]
    folder = tempfile.mkdtemp()
    training = {
        "preset": preset,
        "max_steps": options.steps,
        "rollout_budget": options.rollouts,
        "per_device_train_batch_size": options.rows,
        "max_completion_length": options.longest,
        "temperature": 0.6,
        "top_p": 0.95,
        "learning_rate": 2e-6,
        "bf16": True,
        "curriculum": {"fresh_share": 1.0},
    }
    trainer = DareTrainer(
        options.model,
        number_reward,
        DareConfig(f"{folder}/run", save_strategy="no", report_to=[], **training),
        rows,
    )
    torch.cuda.reset_peak_memory_stats()
    trainer.train()
    peak = torch.cuda.max_memory_allocated() / 1e9
    module = trainer.policy.module
    config = module.config
    parameters = sum(p.numel() for p in module.parameters())
    lines = [
        json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").open(encoding="utf-8")
    ]
    kept = lines[3:]
    prompt = float(np.mean([len(trainer.store.tokens(row)) for row in range(256)]))
    seconds = {
        name: float(np.mean([line["seconds"].get(name, 0.0) for line in kept]))
        for name in sorted({name for line in kept for name in line["seconds"]})
    }
    times = [line["time"] for line in lines]
    step = float(np.mean(np.diff(times[2:])))  # a median of so few steps jumps by a tenth
    trained = float(np.sum([line["tokens"]["trained"] for line in kept]))
    generated = float(np.sum([line["tokens"]["generated"] for line in kept]))
    length = generated / sum(line["rollouts"] for line in kept)
    whole = trained * (length + prompt) / length  # prompts are read with every response
    train_s = float(np.sum([line["seconds"]["train"] for line in kept]))
    head = config.vocab_size * config.hidden_size
    inner = parameters - head * (1 if config.tie_word_embeddings else 2)
    attention = 6 * config.num_hidden_layers * config.hidden_size * (length + prompt)
    flops = 6 * (inner * whole + head * trained) + attention * whole
    data = Path(folder) / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows[:256]), encoding="utf-8")
    recipe = {"model": options.model, "data": str(data), "training": training}
    planned = plan_recipe(recipe, prompt_tokens=prompt, response_tokens=length).peak_gb
    own = sum(seconds.get(name, 0.0) for name in ("plan", "refresh", "score"))
    return {
        "step_s": round(step, 3),
        "first_step_s": round(float(sum(lines[0]["seconds"].values())), 3),  # kernels are compiled
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "own_share": round(own / step, 4),
        "tokens_generated": round(generated / len(kept)),
        "tokens_trained": round(trained / len(kept)),
        "generated_tok_s": round(generated / len(kept) / step),
        "train_response_tok_s": round(trained / train_s),
        "train_tok_s": round(whole / train_s),
        "train_mfu": round(flops / train_s / PEAK, 3),
        "peak_gb": round(peak, 2),
        "reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 2),
        "plan_gb": round(planned, 2),
        "plan_error": round(abs(planned - peak) / peak, 3),
        "mean_length": round(length, 1),
        "parameters": parameters,
        "reward": [round(line["reward"], 3) for line in lines],
        "step_seconds": [round(float(one), 2) for one in np.diff(times)],
    }


def trl_steps(options: argparse.Namespace) -> dict[str, Any]:
    """GRPOTrainer on the same model, prompts and number of rollouts, in the mode of the part."""
    from estimators_gpu import rows_of

    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as file:
        for row in rows_of(options.data)[:2048]:
            turns = [{"role": "user", "content": row["prompt"]}]
            file.write(json.dumps({"prompt": turns, "answer": row["answer"]}) + "\n")
    made = outside(
        "gpu_trl.py", "--model", options.model, "--data", file.name, "--rollouts",
        str(options.rollouts), "--group", "8", "--max-new", str(options.longest),
        "--steps", str(options.trl_steps), "--micro-batch", str(options.rows),
        "--mode", options.part.removeprefix("trl_"),
    )  # fmt: skip
    made["tokens_per_s"] = made["means"]["tokens_per_s"]
    made["peak_gb"] = made["peak_gb"]["allocated"]
    return {**made, "model": options.weights}  # and not the folder where it lies


def part_drift(options: argparse.Namespace) -> dict[str, Any]:
    """Rollouts of up to 400 tokens: log-probs of the update's pass against a later scoring pass.

    Of groups that teach nothing a scoring pass gave both: they are counted and left out.
    """
    from estimators_gpu import number_reward, rows_of

    from dare import DareConfig, DareTrainer

    rows = rows_of(options.data)[:64]
    ahead, callback = scored_ahead()
    trainer = DareTrainer(
        options.model,
        number_reward,
        DareConfig(
            f"{tempfile.mkdtemp()}/run",
            max_steps=2,
            rollout_budget=options.rollouts,
            per_device_train_batch_size=options.rows,
            max_completion_length=options.longest,
            learning_rate=0.0,
            bf16=True,
            score_batch_tokens=3000,  # other batches than the update's: products round differently
            save_strategy="no",
            report_to=[],
            preset="paper",  # the estimator that scores what it keeps
            curriculum={"prompts_per_step": 0, "tiers": False, "estimator.refresh_share": "all"},
        ),
        rows,
        callbacks=[callback],
    )
    callback.trainer = trainer
    trainer.train()
    return drift(trainer.curriculum, ahead)


def scored_ahead() -> tuple[set[int], Any]:
    """Rollouts whose log-probs a scoring pass gave before the update, and the callback that finds
    them: what is known when the optimiser has stepped, but before the update's pass is told of."""
    from transformers import TrainerCallback

    found: set[int] = set()

    class Look(TrainerCallback):
        trainer: Any = None

        def on_optimizer_step(self, *given: Any, **named: Any) -> None:
            curriculum = self.trainer.curriculum
            buffer = curriculum.buffer
            new = buffer["step"] == curriculum.step - 1
            found.update(buffer["uid"][new & buffer.has_behaviour].tolist())

    return found, Look()


def drift(curriculum: Any, ahead: set[int]) -> dict[str, Any]:
    """Ratios of rollouts that both the update's pass and a later scoring pass have read."""
    from dare.curriculum.estimators import effective_sample_size, weights

    buffer = curriculum.buffer
    there = np.flatnonzero(np.isfinite(buffer["behaviour"]) & np.isfinite(buffer["current"]))
    there = there[buffer["scored_step"][there] > buffer["step"][there]]
    before = np.isin(buffer["uid"][there], sorted(ahead))
    there = there[~before]
    ratio = buffer.log_ratio[there]
    prompts, index = np.unique(buffer["prompt"][there], return_inverse=True)
    ess = effective_sample_size(weights(ratio, 4.0), index, len(prompts))
    return {
        "rollouts": len(there),
        "scored_ahead": int(before.sum()),
        "mean_length": float(buffer["length"][there].mean()),
        "ess_share": round(float((ess / np.bincount(index)).mean()), 4),
        "least_ess_share": round(float((ess / np.bincount(index)).min()), 4),
        "log_ratio_sd": round(float(ratio.std()), 5),
        "worst_log_ratio": round(float(np.abs(ratio).max()), 5),
    }


def outside(script: str, *arguments: str) -> dict[str, Any]:
    """The JSON that another benchmark ends with."""
    command = [sys.executable, str(_HERE / script), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{script} failed with {done.returncode}: {done.stdout[-1500:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


if __name__ == "__main__":
    main()
