"""Every estimator against the truth on a real language model: `dare study estimators`, on a GPU.

    python benchmarks/estimators_gpu.py --gguf qwen2.5-coder-1.5b-instruct-q4_k_m.gguf \
        --data gsm8k/train.jsonl.gz --out runs/estimators_gpu

Takes a GGUF file (needs the package `gguf`) or a folder of weights, GSM8K as published (`question`
and `answer`, or `problem`, `solution` and `answer`), trains with the preset `dare` at the paper's
temperature 0.6 and top-p 0.95, and at the chosen steps rolls out held-out prompts 64 times each.
The head of DOTS is fitted before that, to problems that take no part in the run.
A model that solves almost nothing yet can be warmed up on reference solutions first (`--warm-up`);
those problems are then left out of what follows. Every point that is finished is written to
OUT/study/seed-*/so-far.json. The last line is the figures as JSON.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from dare.policy.embed import embed_prompts
from dare.study.estimator_runs import run_estimators
from dare.study.estimators import Measurement
from dare.study.single import fresh_rollouts
from dare.teacher.file import PROBES, SavedHead, load_head, save_head
from dare.teacher.fit import FitSettings
from dare.teacher.fitting import fit_teacher
from dare.training.recipe import build

PROMPT = "{question}\nReason step by step, briefly. End with '#### ' and the final number."
# Models like to set the number off: #### **72**, #### \(72\), #### $72, or \boxed{72}.
_NUMBER = re.compile(r"(?:####|\\boxed\{)[\s*$({\\]*(?:boxed\{)?\s*(-?[\d,]*\.?\d+)")
_BEGAN = time.perf_counter()


def say(text: str) -> None:
    """A line at once, with the seconds since the start: who reads the log sees where it stands."""
    print(f"{time.perf_counter() - _BEGAN:.0f} s: {text}", flush=True)


def number_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 where the number after the last #### or in the last box is the answer, a plain number."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [float(_last(text) == _plain(gold)) for text, gold in zip(texts, answer, strict=True)]


def _last(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return _plain(found[-1]) if found else None


def _plain(text: str) -> float:
    return float(text.replace(",", ""))


def rows_of(path: Path) -> list[dict[str, Any]]:
    """GSM8K problems with prompt, answer and worked solution; calculator notes are taken out."""
    opened = gzip.open if path.suffix == ".gz" else open
    rows = []
    with opened(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            raw = json.loads(line)
            text = str(raw.get("solution") or raw["answer"])
            text = re.sub(r"<<.*?>>", "", text).strip()
            answer = text.split("####")[-1].strip() if "####" in text else str(raw["answer"])
            if "####" not in text:
                text = f"{text}\n#### {answer}"
            prompt = PROMPT.format(question=raw.get("problem") or raw["question"])
            rows.append({"prompt": prompt, "answer": answer, "solution": text, "source": "gsm8k"})
    return rows


def unpacked(gguf: Path, folder: Path) -> Path:
    """The weights of a GGUF file as safetensors, float32, with its tokenizer."""
    if (folder / "config.json").is_file():
        return folder
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    whole = GgufConfig(dequantize=True)
    loaded = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, quantization_config=whole
    )
    # A model that was read from GGUF refuses to be saved: its weights go into a plain one.
    values = loaded.config.to_dict()
    values.pop("quantization_config", None)
    config = type(loaded.config).from_dict(values)
    with torch.device("meta"):  # no random weights first: of a billion they take a minute
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    if end is not None and end != tokenizer.unk_token_id:
        tokenizer.eos_token = "<|im_end|>"  # some GGUF files name the start token here
        plain.generation_config.eos_token_id = plain.config.eos_token_id = end
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def warm_up(folder: Path, rows: list[dict[str, Any]], steps: int, out: Path) -> Path:
    """A short supervised pass over reference solutions; the loss is on the solution alone."""
    if (out / "config.json").is_file():
        return out
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0)
    order = torch.Generator().manual_seed(0)
    for step in range(steps):
        texts, labels = [], []
        for index in torch.randint(len(rows), (32,), generator=order).tolist():
            turns = [{"role": "user", "content": rows[index]["prompt"]}]
            head = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
            body = rows[index]["solution"] + tokenizer.eos_token
            asked, told = (
                tokenizer(t, add_special_tokens=False)["input_ids"] for t in (head, body)
            )
            texts.append(torch.tensor(asked + told))
            labels.append(torch.tensor([-100] * len(asked) + told))
        ids = pad_sequence(texts, True).to(device)  # on the right: no token attends to it
        wanted = pad_sequence(labels, True, -100).to(device)
        for group in optimiser.param_groups:
            group["lr"] = 5e-5 * min(1.0, (step + 1) / 20, (steps - step) / max(1, steps // 3))
        loss = model(input_ids=ids, labels=wanted).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % 50 == 0:
            say(f"warm-up {step}: loss {loss.item():.3f}")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def written(rows: list[dict[str, Any]], path: Path) -> str:
    """The rows as a file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def fitted_head(
    recipe: dict[str, Any], rows: list[dict[str, Any]], out: Path
) -> tuple[str, dict[str, Any]]:
    """The head of DOTS, fitted to pass rates of these problems under the policy at the start."""
    file, count = out / "head.safetensors", len(rows)
    if not file.is_file():
        training = {**recipe["training"], "output_dir": str(out / "teacher")}
        data = written(rows, out / "teacher.jsonl")
        trainer = build({**recipe, "data": data, "training": training})  # nothing is trained
        fresh = fresh_rollouts(trainer, np.arange(count), 8, "teacher rates")
        say(f"teacher: {fresh.tokens} tokens, {1 - fresh.rate_Q.mean():.3f} solved")
        model = trainer.accelerator.unwrap_model(trainer.model).to(trainer.accelerator.device)
        texts = [trainer.store.tokens(row) for row in range(count)]
        texts += [trainer.store.encode_prompt(text) for text in PROBES]
        found = embed_prompts(model, texts, pad_id=trainer.processing_class.pad_token_id)
        say("teacher: problems are embedded")
        settings = FitSettings(steps=400, references=min(256, count // 2))
        rates = (1 - fresh.rate_Q, fresh.trials_Q, np.full(count, "start", dtype=object))
        head, about = fit_teacher(found[:count], *rates, settings)
        save_head(SavedHead(head, Path(recipe["model"]).name, found[count:], about), file)
    about = load_head(file).about
    errors = ", ".join(f"{name} {error['mae']:.3f}" for name, error in about["errors"].items())
    say(f"teacher: fitted, mean error on {about['held_out_rows']} held-out problems: {errors}")
    return str(file), {name: value for name, value in about.items() if name != "history"}


def main() -> None:
    """Weights, warm-up, teacher, study, figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", type=Path, help="weights in one GGUF file")
    source.add_argument("--model", type=Path, help="a folder of weights")
    parser.add_argument("--data", type=Path, required=True, help="GSM8K problems with solutions")
    parser.add_argument("--out", type=Path, default=Path("runs/estimators_gpu"))
    parser.add_argument("--problems", type=int, default=4096, help="problems trained on")
    parser.add_argument("--warm-up", type=int, default=0, metavar="STEPS")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--at", default="10,20,30")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--budget", type=int, default=256, help="rollouts a step trains on")
    parser.add_argument("--tokens", type=int, default=320, help="longest response")
    parser.add_argument("--rows", type=int, default=16, help="rollouts a training forward pass")
    parser.add_argument("--generation-rows", type=int, default=512, help="rollouts at once")
    parser.add_argument("--references", type=int, default=128, help="of cold start and teacher")
    parser.add_argument("--teacher-prompts", type=int, default=512, help="0: an untrained head")
    parser.add_argument("--learning-rate", type=float, default=2e-6)
    parser.add_argument("--seeds", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # TF32: weights and sums stay in float32
    chosen.out.mkdir(parents=True, exist_ok=True)
    model = chosen.model or unpacked(chosen.gguf, chosen.out / "weights")
    say(f"unpack: weights in {model}")
    rows = rows_of(chosen.data)
    if chosen.warm_up:
        half = len(rows) // 2
        model = warm_up(model, rows[half:], chosen.warm_up, chosen.out / "warm")
        rows = rows[:half]
    trained = rows[: min(chosen.problems, len(rows) - chosen.teacher_prompts)]
    others = rows[len(trained) :][: chosen.teacher_prompts]
    recipe = {
        "model": str(model),
        "data": written(trained, chosen.out / "problems.jsonl"),
        "reward": "estimators_gpu:number_reward",
        "preset": "dare",
        "training": {
            "max_steps": chosen.steps,
            "rollout_budget": chosen.budget,
            "per_device_train_batch_size": chosen.rows,
            "generation_rows": chosen.generation_rows,
            "max_completion_length": chosen.tokens,
            "temperature": 0.6,
            "top_p": 0.95,
            "learning_rate": chosen.learning_rate,
            "gradient_checkpointing": False,
            "use_cpu": not torch.cuda.is_available(),
        },
        "curriculum": {
            "cold_start.references": chosen.references,
        },
    }
    at = tuple(int(step) for step in chosen.at.split(","))
    wanted = Measurement(at=at, prompts=chosen.prompts, rollouts=chosen.rollouts)
    head, about = fitted_head(recipe, others, chosen.out) if others else (None, {})
    gc.collect()  # the policy that the teacher was measured with
    figures = run_estimators(recipe, chosen.out / "study", wanted, chosen.seeds, head)
    say("study: finished")
    figures["teacher"] = about
    figures["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    figures["minutes"] = round((time.perf_counter() - _BEGAN) / 60, 1)
    figures["settings"] = {k: str(v) if isinstance(v, Path) else v for k, v in vars(chosen).items()}
    (chosen.out / "figures.json").write_text(json.dumps(figures) + "\n", encoding="utf-8")
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
