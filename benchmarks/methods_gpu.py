"""Methods against GRPO on a language model, on one GPU: runs that are kept one by one.

    python benchmarks/methods_gpu.py --model FOLDER --task mixture --mixture mixture4096.jsonl \
        --math500 math500.jsonl --gsm8k-test gsm8k_test.jsonl --out runs/methods_gpu \
        --arms grpo,dapo,dare,dare+solutions,dare:tiers=false --seeds 1,2,3 --max-seconds 1500

An arm is a preset, `+solutions` where it may read worked solutions, and changes of settings with
colons between them (`dare:learning_rate=2.8e-6:max_steps=35`). Task `mixture` trains on MATH of
level 3 to 5 and DeepScaleR (see `methods_gpu_data.py`), task `gsm8k` on GSM8K. Both are evaluated
greedily on MATH-500 (`--math500`), on other problems of MATH (`--math-test`, whose rows no mixture
may hold) or on both, and on the test problems of GSM8K, each asked in its own words, before
training (once a model), every `--eval-every` steps and at the end. Called again it skips the runs
that are there; what a run leaves is said in `methods_gpu_runs.py`, and `methods_gpu_table.py`
compares. Ends with one JSON line, and with a status that is not 0 where a run failed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from estimators_gpu import number_reward, rows_of
from methods_gpu_arms import Arm, Task, add_options, common_training
from methods_gpu_data import read_lines
from methods_gpu_eval import EvalSet, Row
from methods_gpu_runs import plan_of, run_all

from dare.data.repeats import normal_form
from dare.rewards import math_reward

PROMPT = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
TOKENS = {"mixture": 768, "gsm8k": 400}
"""The longest response, in training and when a set of the same kind is evaluated."""
PROBLEMS = {"mixture": 4096, "gsm8k": 2048}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the data, run what is missing."""
    options = parsed(arguments)
    # Read when the first tensor is made on the GPU: less is held in reserve.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    arms = [Arm.of(text) for text in options.arms.split(",") if text]
    seeds = [int(seed) for seed in options.seeds.split(",") if seed]
    if not options.no_warm_up and math_reward([r"\boxed{\sqrt{8}}"], [r"2\sqrt{2}"]) != [1.0]:
        raise SystemExit("math_reward: its workers cannot verify; is math-verify installed?")
    figures = run_all(plan_of(options), task_of(options), arms, seeds, warm=not options.no_warm_up)
    print(json.dumps(figures), flush=True)
    if figures["failed"]:
        raise SystemExit(1)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--task", choices=sorted(TOKENS), default="mixture")
    parser.add_argument("--arms", default="grpo,dare", help="with commas between them")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--mixture", type=Path, help="needed for the task of that name")
    parser.add_argument("--gsm8k-train", type=Path, help="needed for the task gsm8k")
    parser.add_argument("--gsm8k-test", type=Path, required=True)
    parser.add_argument("--math500", type=Path)
    parser.add_argument("--math-test", type=Path, help="of methods_gpu_data.py --only-outside")
    parser.add_argument("--problems", type=int, help="trained on; 4096 or 2048 unless given")
    parser.add_argument("--data-seed", type=int, default=0, help="which of them; 0: the first")
    parser.add_argument("--tokens", type=int, help="longest response; 768 or 400 unless given")
    parser.add_argument(
        "--eval-every", type=int, default=20, metavar="STEPS", help="0: at the end alone"
    )
    parser.add_argument("--eval-problems", type=int, default=256, help="of each set; 0: all")
    return parser.parse_args(arguments)


def task_of(options: argparse.Namespace) -> Task:
    """The problems to train on and those to evaluate on."""
    name, file = options.task, options.mixture
    if name == "gsm8k":
        file = options.gsm8k_train
    if file is None:
        needed = "--mixture" if name == "mixture" else "--gsm8k-train"
        raise SystemExit(f"--task {name} needs {needed}")
    rows = mixture_rows(file) if name == "mixture" else rows_of(file)
    if options.data_seed:
        order = np.random.default_rng(options.data_seed).permutation(len(rows)).tolist()
        rows = [rows[place] for place in order]
    length = options.tokens or TOKENS[name]
    rows = rows[: options.problems or PROBLEMS[name]]
    sets = evaluation_sets(options)
    refuse_shared(rows, sets)
    return Task(
        name,
        rows,
        math_reward if name == "mixture" else number_reward,
        sets,
        {**common_training(options), "max_completion_length": length},
    )


def evaluation_sets(options: argparse.Namespace) -> tuple[EvalSet, ...]:
    """MATH and GSM8K: the same problems, wording and limits whatever is trained on."""
    files = {"math500": options.math500, "math": options.math_test}
    if not any(files.values()):
        raise SystemExit("give --math500, --math-test or both")
    count = options.eval_problems or None
    sets = []
    for name, file in files.items():
        if file is not None:
            rows = asked(mixture_rows(file))
            order = np.random.default_rng(0).permutation(len(rows))  # files may be sorted
            chosen = [rows[place] for place in order[:count].tolist()]
            sets.append(EvalSet(name, chosen, math_reward, TOKENS["mixture"]))
    words = asked(rows_of(options.gsm8k_test))[:count]
    return (*sets, EvalSet("gsm8k", words, number_reward, TOKENS["gsm8k"]))


def refuse_shared(rows: Sequence[Row], sets: Sequence[EvalSet]) -> None:
    """No problem that is trained on may be one of `--math-test`."""
    trained = {normal_form(row["prompt"]) for row in rows}
    for one in sets:
        both = sum(normal_form(row["prompt"]) in trained for row in one.rows)
        if both and one.name == "math":
            fix = "write another file with methods_gpu_data.py --only-outside"
            raise SystemExit(f"--math-test: {both} of its problems are trained on; {fix}")


def asked(rows: Sequence[Row]) -> list[Row]:
    """Prompt and gold answer alone."""
    return [{"prompt": row["prompt"], "answer": row["answer"]} for row in rows]


def mixture_rows(path: Path) -> list[Row]:
    """Problems with a boxed answer; a solution is null where there is none."""
    return [
        {
            "prompt": PROMPT.format(problem=row["problem"]),
            "answer": str(row["answer"]),
            "solution": row.get("solution"),
            "source": row.get("source", path.stem),
        }
        for row in read_lines(path)
    ]


if __name__ == "__main__":
    main()
