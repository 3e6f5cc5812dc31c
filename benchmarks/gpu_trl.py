"""Steps of TRL's GRPOTrainer on a real model: seconds of generation and of the rest, and memory.

    python benchmarks/gpu_trl.py --model FOLDER --data FILE.jsonl --rollouts 256 --group 8 \
        --max-new 400 --steps 4 --mode generate

A step generates `--rollouts` responses at once (in groups of `--group`) and makes one update from
them, in as many micro-batches as `--micro-batch` gives; if one does not fit, the program starts
again with half as many rows and says so. Rows of FILE.jsonl have `answer` and either `prompt` (text
or messages, used as they are) or `problem`, which becomes the user's turn after --system.

    generate  transformers' `generate`, TRL's default
    paged     transformers' continuous batching (`use_transformers_continuous_batching`)
    vllm      vLLM in the same process (`vllm_mode="colocate"`), weights sent before every step

Everything that is not an argument here is TRL's default: among it gradient checkpointing, the
fused AdamW, and weights in float32 whatever the folder holds, with the passes of `generate` and of
the update under bf16 autocast. `paged` casts policy and optimizer to bf16 for good; vLLM takes the
type of the folder. `--dtype bfloat16` loads and trains in bf16. The types that were used are in the
output. Lengths are the policy's own, so tokens a second are given beside seconds.

The first step is left out of the means. `peak_gb` is torch's memory over building and all steps:
allocated, reserved, and what was allocated at the peak of generation. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
from datasets import Dataset
from gpu_vllm import capture_sizes
from transformers import TrainerCallback

SYSTEM = "Let's think step by step and output the final answer within \\boxed{}."
trl: Any = importlib.import_module("trl")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class Clock(TrainerCallback):
    """Seconds of every step, and of the calls inside it that are wrapped; memory beside them."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self._last = 0.0
        self._parts: dict[str, float] = {}
        self._peak = {"allocated": 0, "reserved": 0, "generation": 0}
        self.steps: list[dict[str, float]] = []

    def now(self) -> float:
        """The time once the device has finished what it was given."""
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def wrap(self, owner: Any, method: str, part: str) -> None:
        """Have owner's method counted as a part of the step."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self.now()
            if part == "generation_s":
                self._note_peak("allocated")
            result = inner(*args, **kwargs)
            self._parts[part] = self._parts.get(part, 0.0) + self.now() - start
            if part == "generation_s":
                self._note_peak("generation")
            return result

        setattr(owner, method, timed)

    def _note_peak(self, phase: str) -> None:
        """Take what torch has seen since the last call as the peak of this phase."""
        if not self._cuda:
            return
        inside = torch.cuda.max_memory_allocated()
        seen = {phase: inside, "allocated": inside, "reserved": torch.cuda.max_memory_reserved()}
        for name, value in seen.items():
            self._peak[name] = max(self._peak[name], value)
        torch.cuda.reset_peak_memory_stats()

    def peaks_gb(self) -> dict[str, float]:
        """Peaks so far: allocated, of these in generation, and reserved."""
        self._note_peak("allocated")
        return {name: round(value / 1e9, 2) for name, value in self._peak.items()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        self._last = self.now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        now = self.now()
        self.steps.append({"total_s": now - self._last, **self._parts})
        print(f"step {len(self.steps)}: {self.steps[-1]}", flush=True)
        self._last, self._parts = now, {}


class LastNumber:
    """Reward 1 where the last number of the text is the answer; counts the tokens it is shown."""

    __name__ = "last_number"

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.rewards: list[float] = []

    def __call__(
        self, completions: list[Any], completion_ids: list[list[int]], answer: list[str], **_: Any
    ) -> list[float]:
        """Rewards of one step's rollouts."""
        self.tokens.append(sum(len(ids) for ids in completion_ids))
        texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
        rewards = [
            float(self._last(text) == gold.replace(",", ""))
            for text, gold in zip(texts, answer, strict=True)
        ]
        self.rewards.append(statistics.fmean(rewards))
        return rewards

    @staticmethod
    def _last(text: str) -> str | None:
        found = _NUMBER.findall(text)
        return found[-1].replace(",", "") if found else None


def read_prompts(path: Path, system: str, most: int) -> Any:
    """The first rows of the file, as TRL wants them."""
    rows: list[dict[str, Any]] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if len(rows) == most:
                break
            row = json.loads(line)
            prompt = row.get("prompt")
            if prompt is None:
                prompt = [{"role": "user", "content": row["problem"]}]
                if system:
                    prompt.insert(0, {"role": "system", "content": system})
            rows.append({"prompt": prompt, "answer": str(row["answer"])})
    if len(rows) < most:
        raise SystemExit(f"--data {path}: {len(rows)} rows, but one step needs {most} prompts")
    return Dataset.from_list(rows)


def trainer_arguments(options: argparse.Namespace, folder: str, micro: int) -> Any:
    """TRL's settings for the chosen way to generate."""
    cpu = options.device == "cpu"
    arguments: dict[str, Any] = {
        "output_dir": folder,
        "max_steps": options.steps,
        "learning_rate": options.learning_rate,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": options.rollouts // micro,
        "steps_per_generation": options.rollouts // micro,
        "num_generations": options.group,
        "max_completion_length": options.max_new,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "beta": 0.0,
        "num_iterations": 1,
        "bf16": True,
        "use_cpu": cpu,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": options.seed,
    }
    if options.dtype != "default":
        arguments["model_init_kwargs"] = {"dtype": options.dtype}
    if options.mode == "paged":
        arguments["use_transformers_continuous_batching"] = True
        if options.paged_memory is not None:
            arguments["transformers_continuous_batching_config"] = {
                "max_memory_percent": options.paged_memory
            }
    elif options.mode == "vllm":
        arguments.update(
            use_vllm=True,
            vllm_mode="colocate",
            vllm_gpu_memory_utilization=options.vllm_memory,
            vllm_max_model_length=options.vllm_length,
        )
    return trl.GRPOConfig(**arguments)


def set_vllm(rows: int) -> None:
    """Have TRL build its engine as benchmarks/gpu_vllm.py does: TRL has no setting for these."""
    module: Any = importlib.import_module("trl.generation.vllm_generation")
    build = module.LLM

    def with_graphs(**settings: Any) -> Any:
        settings.setdefault("attention_config", {"backend": "FLASH_ATTN"})
        settings.setdefault(
            "compilation_config",
            {
                "mode": 0,
                "cudagraph_mode": "FULL_DECODE_ONLY",
                "cudagraph_capture_sizes": capture_sizes(min(rows, 1024)),
            },
        )
        return build(**settings)

    module.LLM = with_graphs


def run(options: argparse.Namespace, micro: int) -> dict[str, Any]:
    """Train, and return what was measured."""
    cuda = options.device == "cuda"
    if options.mode == "vllm" and options.vllm_settings == "graphs":
        set_vllm(options.rollouts)
    prompts = options.rollouts // options.group
    reward, clock = LastNumber(), Clock(cuda)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.GRPOTrainer(
            model=str(options.model),
            reward_funcs=reward,
            args=trainer_arguments(options, folder, micro),
            train_dataset=read_prompts(options.data, options.system, prompts * options.steps),
            callbacks=[clock],
        )
        loaded = str(trainer.model.dtype).removeprefix("torch.")
        clock.wrap(trainer, "_generate", "generation_s")
        if options.mode == "vllm":
            clock.wrap(trainer.vllm_generation, "sync_weights", "sync_s")
        built = time.perf_counter() - start
        trainer.train()
    policy = trainer.accelerator.unwrap_model(trainer.model)
    moments = [value for state in trainer.optimizer.state.values() for value in state.values()]
    wide = [value.dtype for value in moments if torch.is_tensor(value) and value.dim() > 0]

    steps: list[dict[str, float]] = []
    for step, tokens, mean in zip(clock.steps, reward.tokens, reward.rewards, strict=True):
        total, generation = step["total_s"], step["generation_s"]
        steps.append(
            {
                **{name: round(value, 3) for name, value in step.items()},
                "rest_s": round(total - generation, 3),
                "tokens": tokens,
                "tokens_per_s": round(tokens / total),
                "generated_per_s": round(tokens / generation),
                "reward": round(mean, 4),
            }
        )
    counted = steps[1:] or steps
    means = {
        name: round(statistics.fmean(step[name] for step in counted), 3) for name in counted[0]
    }
    # Of sums, not of the steps' rates.
    made = sum(step["tokens"] for step in counted)
    means["tokens_per_s"] = round(made / sum(step["total_s"] for step in counted))
    means["generated_per_s"] = round(made / sum(step["generation_s"] for step in counted))
    figures: dict[str, Any] = {
        "trainer": "trl",
        "versions": {
            name: importlib.metadata.version(name) for name in ("trl", "transformers", "torch")
        },
        "mode": options.mode,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "model": str(options.model),
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "dtype": loaded,
        "dtype_after": str(policy.dtype).removeprefix("torch."),
        "state_dtype": str(wide[0]).removeprefix("torch.") if wide else None,
        "attention": policy.config._attn_implementation,
        "gradient_checkpointing": bool(trainer.args.gradient_checkpointing),
        "optimizer": str(trainer.args.optim).rsplit(".", 1)[-1],
        "loss_type": trainer.args.loss_type,
        "rollouts": options.rollouts,
        "group": options.group,
        "micro_batch": micro,
        "max_new": options.max_new,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "build_s": round(built, 1),
        "steps": steps,
        "means": means,
    }
    if cuda:
        figures["peak_gb"] = clock.peaks_gb()
    return figures


def main() -> None:
    """One run; again with smaller micro-batches if it does not fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--mode", choices=("generate", "paged", "vllm"), default="generate")
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--max-new", type=int, default=400)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=2e-6)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--system", default=SYSTEM)
    parser.add_argument("--dtype", choices=("default", "bfloat16", "float32"), default="default")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--paged-memory", type=float, help="share of free memory for paged caches")
    parser.add_argument("--vllm-memory", type=float, default=0.3)
    parser.add_argument("--vllm-length", type=int, default=1024, help="longest prompt and response")
    parser.add_argument(
        "--vllm-settings",
        choices=("graphs", "default"),
        default="graphs",
        help="graphs: as benchmarks/gpu_vllm.py; default: as TRL and vLLM decide",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    micro = min(options.micro_batch, options.rollouts)
    if options.rollouts % micro or options.rollouts % options.group:
        raise SystemExit("--rollouts must be a multiple of --micro-batch and of --group")
    try:
        figures = run(options, micro)
    except torch.cuda.OutOfMemoryError as error:
        if micro == 1:
            raise
        print(f"micro-batches of {micro} do not fit: {error}", flush=True)
        # A new process image: what the failed run holds on the device is gone for certain.
        # The last value of an option counts.
        again = [sys.executable, *sys.argv, "--micro-batch", str(micro // 2)]
        sys.stdout.flush()
        os.execv(sys.executable, again)
    line = json.dumps(figures)
    if options.out:
        options.out.write_text(line + "\n", encoding="utf-8")
    print(line, flush=True)


if __name__ == "__main__":
    main()
