"""DARE with vLLM in its process, with its own decoder, and TRL with vLLM, on the same work.

    python benchmarks/engines_gpu.py --model FOLDER --data gsm8k/train.jsonl --out engines_gpu.json

Needs vllm and, for its part, trl. Each part is a process of its own; what is finished is written to
--out at once, and `--parts` chooses some (the others keep what --out holds):

    own    steps of `dare` with the decoder that DARE brings
    vllm   the same with `generator: vllm`, asleep during updates. The process is killed (-9) two
           steps after its checkpoint and another one resumes, so resume is part of the run
    trl    GRPOTrainer with `use_vllm` in its process (`gpu_trl.py`)

A step has the same number of rollouts, limits and sampling in all; lengths are the policy's own, so
tokens a second stand beside seconds. Steps that compile, save or follow a start are left out of the
means. The gap is |log-prob of the policy - log-prob of the engine| of the tokens trained on, before
correction and weighed by it; the ratios are the importance weights that correct for it, after their
bounds. `gap_by_step` has the gap of every step, the first and the last included. Ends with one JSON
line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from gpu import begun, keep, stamp, trl_steps

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
PARTS = ("own", "vllm", "trl")
WARM = 2
"""Steps after a start that are not counted: graphs are captured, kernels chosen."""


def main() -> None:
    """Run the parts, derive the ratios, print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=32, help="rollouts of a micro-batch")
    parser.add_argument("--longest", type=int, default=400)
    parser.add_argument("--weights", default="random", help="what the folder holds, for the record")
    options = parser.parse_args()
    if options.part:
        train(options)
        return
    figures, failed = begun(options.out), list[str]()
    for name in options.parts.split(","):
        began = time.perf_counter()
        try:
            made = part(options, name)
        except (OSError, RuntimeError, SystemExit) as error:
            print(f"{name}: {error}", flush=True)
            failed.append(name)
            continue
        figures[name] = {**made, "stamp": stamp(options.weights, str(made["device"]))}
        print(
            f"{name}: {time.perf_counter() - began:.0f} s {json.dumps(figures[name])}", flush=True
        )
        keep(options.out, {**figures, "figures": derived(figures)})
    print(json.dumps(derived(figures)))
    if failed:
        raise SystemExit(1)


def part(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """What one part measured."""
    if name == "trl":
        return trl(options)
    folder = Path(tempfile.mkdtemp())
    try:
        command = [sys.executable, __file__, *sys.argv[1:], "--part", name, "--folder", str(folder)]
        starts = [call(command)]
        if name == "vllm":
            if starts[0] != -signal.SIGKILL:
                raise RuntimeError(f"ended with {starts[0]} before it was killed")
            starts.append(call(command))
        if starts[-1]:
            raise RuntimeError(f"ended with {starts[-1]}")
        return measured(folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def call(command: list[str]) -> int:
    """The exit status of a process; what it prints goes to standard error."""
    return subprocess.run(command, stdout=sys.stderr, check=False).returncode


def train(options: argparse.Namespace) -> None:
    """All steps of one part, or those that are left of a run that was killed."""
    import torch
    from estimators_gpu import number_reward, rows_of
    from gpu_vllm import capture_sizes
    from transformers import TrainerCallback

    from dare import DareConfig, DareTrainer

    cuda = torch.cuda.is_available()
    rows = rows_of(options.data)[:2048]
    for row in rows:
        del row["solution"]
    run, save_at = options.folder / "run", options.steps // 2
    settings: dict[str, Any] = {
        "preset": "dare",
        "max_steps": options.steps,
        "rollout_budget": options.rollouts,
        "per_device_train_batch_size": options.rows,
        "max_completion_length": options.longest,
        "temperature": 0.6,
        "top_p": 0.95,
        "learning_rate": 2e-6,
        "lr_scheduler_type": "constant",
        "bf16": True,
        "use_cpu": not cuda,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    if options.part == "vllm":
        settings |= {
            "generator": "vllm",
            "vllm_enable_sleep_mode": cuda,
            "vllm_max_model_length": 1024,
            "save_strategy": "steps",
            "save_steps": save_at,
            "save_total_limit": 1,
        }
        graphs = {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": capture_sizes(min(options.rollouts, 1024)),
        }
        backend = {"backend": "FLASH_ATTN"}
        settings["vllm_engine_kwargs"] = (
            {"attention_config": backend, "compilation_config": graphs}
            if cuda
            else {"kv_cache_memory_bytes": 1 << 27}
        )
    trainer = DareTrainer(options.model, number_reward, DareConfig(str(run), **settings), rows)
    resumed = any(run.glob("checkpoint-*"))

    class Killed(TrainerCallback):
        """Ends the process as a crash would, two steps after the checkpoint."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """See TrainerCallback."""
            if state.global_step == save_at + 2:
                os.kill(os.getpid(), signal.SIGKILL)

    if options.part == "vllm" and not resumed:
        trainer.add_callback(Killed())
    trainer.train(resume_from_checkpoint=resumed or None)
    memory = {}
    if cuda:
        memory = {
            "device": torch.cuda.get_device_name(),
            "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        }
    (options.folder / "end.json").write_text(json.dumps({**memory, "resumed": resumed}))


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Means over the steps that count."""
    text = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    end = json.loads((folder / "end.json").read_text(encoding="utf-8"))
    if [line["step"] for line in lines] != list(range(options.steps)):
        raise RuntimeError(f"steps {[line['step'] for line in lines]} are in the log")
    begins = (0, options.steps // 2) if end["resumed"] else (0,)
    places = [at for at in range(len(lines)) if all(not 0 <= at - one < WARM for one in begins)]
    counted = [lines[at] for at in places]
    spent = [lines[at]["time"] - lines[at - 1]["time"] for at in places]
    generated = float(sum(line["tokens"]["generated"] for line in counted))
    phases = sorted({name for line in counted for name in line["seconds"]})
    gap = sorted({name for line in counted for name in line if name.startswith("sampling/")})
    return {
        **end,
        "steps": len(lines),
        "counted": len(counted),
        "step_s": round(float(np.mean(spent)), 3),
        "seconds": {
            name: round(float(np.mean([line["seconds"].get(name, 0.0) for line in counted])), 3)
            for name in phases
        },
        "tokens_per_s": round(generated / sum(spent)),
        "generated_per_s": round(generated / sum(line["seconds"]["generate"] for line in counted)),
        "mean_length": round(float(np.mean([line["length"] for line in counted])), 1),
        "reward": [round(line["reward"], 3) for line in lines],
        "gap": {
            name: _over(name, [line[name] for line in counted if name in line]) for name in gap
        },
        "gap_by_step": {
            name: [round(line[name], 6) if name in line else None for line in lines] for name in gap
        },
    }


def _over(name: str, values: list[float]) -> float:
    """Over all steps: the largest of the largest, the smallest of the smallest, else the mean."""
    kind = {"max": np.max, "min": np.min}.get(name.rsplit("/", 1)[-1], np.mean)
    return round(float(kind(values)), 6)


def trl(options: argparse.Namespace) -> dict[str, Any]:
    """GRPOTrainer with vLLM in its process, on the same model, prompts and number of rollouts."""
    made = trl_steps(argparse.Namespace(**{**vars(options), "part": "trl_vllm", "trl_steps": 5}))
    means = made["means"]
    return {**made, "step_s": means["total_s"], "generated_per_s": means["generated_per_s"]}


def derived(found: dict[str, Any]) -> dict[str, Any]:
    """The figures that are asked for, of the parts that are there."""
    own, vllm, other = (found.get(name) for name in PARTS)
    made: dict[str, Any] = {}
    for name, one in (("own", own), ("vllm", vllm), ("trl_vllm", other)):
        if one:
            made |= {f"{name}_step_s": one["step_s"], f"{name}_tokens_per_s": one["tokens_per_s"]}
    if vllm and own:
        made["vllm_step_vs_own_step"] = round(vllm["step_s"] / own["step_s"], 3)
    if vllm and other:
        made["dare_step_vs_trl_vllm_step"] = round(vllm["step_s"] / other["step_s"], 3)
    if own and other:
        made["own_step_vs_trl_vllm_step"] = round(own["step_s"] / other["step_s"], 3)
    if vllm:
        made["gap"], made["resumed"] = vllm["gap"], vllm["resumed"]
    return made


if __name__ == "__main__":
    main()
