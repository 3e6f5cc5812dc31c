"""DareTrainer against TRL's GRPOTrainer: same model, prompts, rollouts a step and lengths.

    python benchmarks/trainer.py [--device cuda] [--out FILE.json]

Both trainers run in one process, turn by turn; only ratios of the same turn are compared, and the
median over the turns is reported. Peak memory is taken in processes of their own. Without TRL or
datasets only DARE's side runs, and the ratios are null. Ends with one JSON line:

    tokens_per_s_ratio  generated + trained tokens per second, DARE (preset grpo) / TRL: the
                        smallest of the comparisons
    peak_memory_ratio   memory at the peak of training above that before it, DARE / TRL: the
                        largest of the comparisons
    overhead_share      plan, observe, buffer and refresh of the preset `dare` / time of a step
    fixed               every response has the same length
    ragged              responses end at random
    fixed_full          fixed lengths, top_p = 1: no nucleus, the time of sorting is out of it
    overhead            seconds a step of each phase with the preset `dare`
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pyarrow.parquet
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)

from dare.training import DareConfig, DareTrainer

PAD, EOS, UNK = 0, 1, 2
WARM_UP = 1  # steps of every run that are not counted
SCENARIOS = ("fixed", "ragged", "fixed_full")
HAS_TRL = all(importlib.util.find_spec(name) for name in ("trl", "datasets"))


class StepClock(TrainerCallback):
    """Seconds from the end of one step to the end of the next."""

    def __init__(self, device: str) -> None:
        self._cuda, self._last = device == "cuda", 0.0
        self.seconds: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        self._last = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        if self._cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


class Alternating:
    """A reward that differs inside every group: right, wrong, right, ... in order of the call.

    All advantages are then different from zero, so no trainer can skip a rollout. It also counts
    the tokens it is shown, in the same way for both trainers.
    """

    __name__ = "alternating"

    def __init__(self) -> None:
        self.lengths: list[list[int]] = []

    def __call__(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        """Rewards of one step's rollouts."""
        self.lengths.append([len(ids) for ids in completion_ids])
        return [float(place % 2) for place in range(len(completion_ids))]


def make_tokenizer(vocabulary: int) -> Any:
    """One token a word: w3, w4, ..."""
    words = {"<pad>": PAD, "<eos>": EOS, "<unk>": UNK}
    words.update({f"w{i}": i for i in range(3, vocabulary)})
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )


def make_model(options: argparse.Namespace, scenario: str) -> Any:
    """A Llama with random weights whose head has a bias, which sets how often responses end.

    `fixed...` never ends by itself; `ragged` ends at each token with probability 2 / max_tokens.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=max(1, options.hidden // 32),
        max_position_embeddings=1024,
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=PAD,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    head = torch.nn.Linear(options.hidden, options.vocabulary, bias=True)
    head.weight = model.lm_head.weight
    torch.nn.init.zeros_(head.bias)
    chance = 2 / options.max_tokens
    odds = chance / (1 - chance) * options.vocabulary * options.top_p
    with torch.no_grad():
        head.bias[PAD] = -1e4
        head.bias[EOS] = (
            -1e4 if scenario.startswith("fixed") else options.temperature * math.log(odds)
        )
    model.lm_head = head
    return model.to(options.device)


def make_prompts(options: argparse.Namespace) -> list[dict[str, str]]:
    """Prompts of equal length, so that both trainers read as many prompt tokens."""
    generator = torch.Generator().manual_seed(0)
    shape = (4 * options.rollouts, options.prompt_tokens)
    ids = torch.randint(3, options.vocabulary, shape, generator=generator).tolist()
    return [{"prompt": " ".join(f"w{i}" for i in row), "answer": "1"} for row in ids]


def common_arguments(
    options: argparse.Namespace, scenario: str, folder: str, steps: int, seed: int
) -> dict[str, Any]:
    """Settings that both trainers take under the same name."""
    return {
        "output_dir": folder,
        "max_steps": steps,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": options.micro_batch,
        "num_generations": options.group_size,
        "max_completion_length": options.max_tokens,
        "temperature": options.temperature,
        "top_p": 1.0 if scenario == "fixed_full" else options.top_p,
        "top_k": 0,
        "beta": 0.0,
        "epsilon": 0.2,
        "gradient_checkpointing": False,
        "bf16": False,
        "fp16": False,
        "use_cpu": options.device == "cpu",
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": seed,
    }


def make_dare(
    options: argparse.Namespace,
    scenario: str,
    folder: str,
    steps: int,
    clock: StepClock,
    seed: int = 0,
) -> tuple[Any, Alternating]:
    """DareTrainer that does what GRPO does: uniform draws, equal groups, no refresh."""
    reward = Alternating()
    arguments = common_arguments(options, scenario, folder, steps, seed)
    args = DareConfig(preset="grpo", rollout_budget=options.rollouts, **arguments)
    model, tokenizer = make_model(options, scenario), make_tokenizer(options.vocabulary)
    return DareTrainer(model, reward, args, make_prompts(options), None, tokenizer, [clock]), reward


def make_trl(
    options: argparse.Namespace,
    scenario: str,
    folder: str,
    steps: int,
    clock: StepClock,
    seed: int = 0,
) -> tuple[Any, Alternating]:
    """GRPOTrainer with one update a batch and no reference model."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]

    reward = Alternating()
    args = GRPOConfig(
        gradient_accumulation_steps=options.rollouts // options.micro_batch,
        num_iterations=1,
        loss_type="grpo",
        scale_rewards="group",
        use_vllm=False,
        log_completions=False,
        **common_arguments(options, scenario, folder, steps, seed),
    )
    model, tokenizer = make_model(options, scenario), make_tokenizer(options.vocabulary)
    dataset = Dataset.from_list(make_prompts(options))
    rewarded: Any = reward
    trainer = GRPOTrainer(
        model, rewarded, args, dataset, processing_class=tokenizer, callbacks=[clock]
    )
    return trainer, reward


MAKERS = {"dare": make_dare, "trl": make_trl}


def read_metrics(folder: str) -> list[dict[str, Any]]:
    """The step records of a run of DareTrainer."""
    text = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def timed_run(options: argparse.Namespace, kind: str, scenario: str, seed: int) -> dict[str, Any]:
    """One short training: seconds, tokens and rollouts of its steps after the warm-up."""
    steps = WARM_UP + options.steps
    with tempfile.TemporaryDirectory() as folder, quiet():
        clock = StepClock(options.device)
        trainer, reward = MAKERS[kind](options, scenario, folder, steps, clock, seed)
        trainer.train()
        generated = [sum(lengths) for lengths in reward.lengths]
        result: dict[str, Any] = {}
        if kind == "dare":
            records = read_metrics(folder)
            trained = [record["tokens"]["trained"] for record in records]
            names = records[-1]["seconds"]
            result["phases"] = {
                name: sum(r["seconds"].get(name, 0.0) for r in records[WARM_UP:]) / options.steps
                for name in names
            }
        else:
            trained = generated  # every rollout is trained on, whatever its advantage
    del trainer
    gc.collect()
    assert len(clock.seconds) == len(generated) == len(trained) == steps
    seconds = sum(clock.seconds[WARM_UP:])
    tokens = sum(generated[WARM_UP:]) + sum(trained[WARM_UP:])
    rollouts = sum(len(lengths) for lengths in reward.lengths[WARM_UP:])
    return {
        "seconds_per_step": seconds / options.steps,
        "generated_per_step": sum(generated[WARM_UP:]) / options.steps,
        "trained_per_step": sum(trained[WARM_UP:]) / options.steps,
        "tokens_per_s": tokens / seconds,
        "rollouts_per_s": rollouts / seconds,
        "mean_length": sum(generated[WARM_UP:]) / rollouts,
        **result,
    }


def compare_speed(options: argparse.Namespace, scenario: str) -> dict[str, Any]:
    """Turns of both trainers; the order changes from turn to turn."""
    kinds = ["dare", "trl"] if HAS_TRL else ["dare"]
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for turn in range(options.turns):
        for kind in kinds if turn % 2 == 0 else kinds[::-1]:
            run = timed_run(options, kind, scenario, turn)
            runs[kind].append(run)
            say(f"{scenario} {turn + 1}/{options.turns} {kind}: {run['tokens_per_s']:.0f} tokens/s")
    result: dict[str, Any] = {}
    for kind, found in runs.items():
        result[kind] = {
            name: round(statistics.median(run[name] for run in found), 4)
            for name in found[0]
            if name != "phases"
        }
    result["dare"]["phases_s"] = {
        name: round(statistics.median(run["phases"][name] for run in runs["dare"]), 4)
        for name in runs["dare"][0]["phases"]
    }
    if HAS_TRL:
        for name in ("tokens_per_s", "rollouts_per_s"):
            ratios = [a[name] / b[name] for a, b in zip(runs["dare"], runs["trl"], strict=True)]
            result[f"{name}_ratio"] = round(statistics.median(ratios), 4)
            result[f"{name}_ratios"] = [round(ratio, 4) for ratio in ratios]
    return result


def memory_child(options: argparse.Namespace, kind: str, scenario: str) -> float:
    """MB at the peak of training, above what stood once the trainer was built."""
    cuda = options.device == "cuda"
    small = {"rollouts": 4, "group_size": 2, "micro_batch": 2, "max_tokens": 4, "steps": 1}
    # A toy run first: modules that a trainer imports on the way are no memory of its training.
    timed_run(argparse.Namespace(**{**vars(options), **small}), kind, scenario, 0)
    with tempfile.TemporaryDirectory() as folder, quiet():
        clock = StepClock(options.device)
        trainer, _ = MAKERS[kind](options, scenario, folder, 2, clock)
        gc.collect()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() / 1e6
        else:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
            before = proc_mb("VmRSS")
        trainer.train()
        after = torch.cuda.max_memory_allocated() / 1e6 if cuda else proc_mb("VmHWM")
    return after - before


def proc_mb(name: str) -> float:
    """A line of /proc/self/status in MB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1e3
    raise LookupError(name)


def compare_memory(options: argparse.Namespace, scenario: str) -> dict[str, Any]:
    """Peaks in fresh processes, turn by turn."""
    kinds = ["dare", "trl"] if HAS_TRL else ["dare"]
    peaks: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(options.memory_turns):
        for kind in kinds if turn % 2 == 0 else kinds[::-1]:
            command = [sys.executable, __file__, *sys.argv[1:], "--child", kind, scenario]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            peaks[kind].append(float(done.stdout.strip().splitlines()[-1]))
            say(f"{scenario} memory {kind}: {peaks[kind][-1]:.0f} MB")
    median = {kind: statistics.median(found) for kind, found in peaks.items()}
    result: dict[str, Any] = {
        "peak_mb": {kind: round(value, 1) for kind, value in median.items()},
        "peaks_mb": {kind: [round(v, 1) for v in found] for kind, found in peaks.items()},
    }
    if HAS_TRL:
        result["ratio"] = round(median["dare"] / median["trl"], 4)
    return result


def measure_overhead(options: argparse.Namespace) -> dict[str, Any]:
    """Phases of a step with the preset `dare`: pocket policy, embedded tasks, all defaults.

    Steps count after the first two, which hold the reference rollouts and an almost empty buffer.
    """
    from dare import pocket, tasks

    def solved(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [tasks.reward(text, gold) for text, gold in zip(completions, answer, strict=True)]

    skipped = 2
    clock = StepClock(options.device)
    with tempfile.TemporaryDirectory() as folder, quiet():
        args = DareConfig(
            output_dir=folder,
            preset="dare",
            max_steps=skipped + options.overhead_steps,
            learning_rate=1e-4,
            per_device_train_batch_size=32,
            rollout_budget=options.overhead_rollouts,
            max_completion_length=64,
            use_cpu=options.device == "cpu",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        prompts = [dict(problem) for problem in tasks.generate(2048, seed=0)]
        policy, tokenizer = pocket.load_policy(), pocket.load_tokenizer()
        DareTrainer(policy, solved, args, prompts, None, tokenizer, [clock]).train()
        records = read_metrics(folder)[skipped:]
    wall = clock.seconds[skipped:]
    shares = [
        (r["seconds"]["plan"] + r["seconds"]["refresh"]) / t
        for r, t in zip(records, wall, strict=True)
    ]
    scored = [r["seconds"]["score"] / t for r, t in zip(records, wall, strict=True)]
    phases = {
        name: round(statistics.median(r["seconds"].get(name, 0.0) for r in records), 4)
        for name in records[-1]["seconds"]
    }
    tokens = {
        name: round(statistics.median(r["tokens"][name] for r in records))
        for name in records[-1]["tokens"]
    }
    result = {
        "share": round(statistics.median(shares), 4),
        "shares": [round(share, 4) for share in shares],
        "seconds_per_step": round(statistics.median(wall), 4),
        "phases_s": phases,
        "tokens": tokens,
        "score_share": round(statistics.median(scored), 4),
    }
    say(f"overhead: {result['share']:.3f} of a step of {result['seconds_per_step']:.2f} s")
    return result


@contextlib.contextmanager
def quiet() -> Any:
    """Trainers print their own summaries; the last line here is the result."""
    with open(os.devnull, "w", encoding="utf-8") as hole, contextlib.redirect_stdout(hole):
        yield


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="torch threads on the CPU")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--rollouts", type=int, default=32, help="R, a step")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--steps", type=int, default=2, help="counted steps of a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--memory-turns", type=int, default=3)
    parser.add_argument("--overhead-rollouts", type=int, default=256)
    parser.add_argument("--overhead-steps", type=int, default=12)
    parser.add_argument("--out", type=Path, help="also write the result to this file, indented")
    parser.add_argument("--child", nargs=2, metavar=("KIND", "SCENARIO"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run all comparisons and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.child:
        print(memory_child(options, *options.child))
        return
    if not HAS_TRL:
        say("trl or datasets is not installed: only DARE's side runs, ratios are null")
    found = {name: compare_speed(options, name) for name in SCENARIOS}
    for name in SCENARIOS:
        found[name]["memory"] = compare_memory(options, name)
    overhead = measure_overhead(options)
    speed = [found[name]["tokens_per_s_ratio"] for name in SCENARIOS] if HAS_TRL else []
    memory = [found[name]["memory"]["ratio"] for name in SCENARIOS] if HAS_TRL else []
    sizes = {k: v for k, v in vars(options).items() if k not in ("out", "child")}
    result = {
        "tokens_per_s_ratio": min(speed, default=None),
        "peak_memory_ratio": max(memory, default=None),
        "overhead_share": overhead["share"],
        **found,
        "overhead": overhead,
        "settings": {**sizes, "parameters": parameters(options)},
        "versions": versions(),
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def parameters(options: argparse.Namespace) -> int:
    """Size of the model that is compared."""
    return sum(p.numel() for p in make_model(options, "fixed").parameters())


def versions() -> dict[str, str]:
    """What was measured."""
    from importlib.metadata import version

    names = ["torch", "transformers", *(["trl"] if HAS_TRL else []), "pyarrow"]
    return {name: version(name) for name in names}


if __name__ == "__main__":
    assert pyarrow.parquet  # loaded before memory is measured: TRL's side needs it too
    main()
