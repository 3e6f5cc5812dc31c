"""GRPO and DARE on programs that are run: MBPP for training, HumanEval before and after.

    python benchmarks/code_gpu.py --model FOLDER --mbpp mbpp.jsonl --humaneval humaneval.jsonl \
        --out runs/code_gpu [--arms grpo,dare] [--sandbox auto]

Trained on are the problems 511 to 974 of MBPP (its parts "train" and "validation"), asked as
`dare eval` asks them; evaluated, greedily, are HumanEval and problems of MBPP's own test part (11
to 510). The reward is 1 where the program passes its tests in the sandbox. `auto` takes bubblewrap
or Landlock, whichever holds; on a machine that has neither and can reach nothing, `none` runs
programs without one if DARE_DANGEROUSLY_RUN_WITHOUT_SANDBOX=1. Runs are kept and skipped as those
of `methods_gpu.py`; `methods_gpu_table.py` compares them too. Ends with one JSON line: the sandbox,
accuracies, unscored share, and seconds spent in the sandbox.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from methods_gpu_arms import Arm, Task, add_options, common_training
from methods_gpu_eval import EvalSet, Row
from methods_gpu_runs import Plan, plan_of, run_all, say

from dare.data.contamination import Decontaminator
from dare.data.contamination import Problem as NamedText
from dare.evaluation.benchmarks import Problem, benchmark, load_problems
from dare.rewards.calling import RewardFunction
from dare_sandbox import Sandbox, open_sandbox, probe
from dare_verify.code import make_code_reward

TRAINED, TESTED = range(511, 975), range(11, 511)
"""Problems of MBPP by number, as its authors divided them."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Open the sandbox, run what is missing, say what was found."""
    options = parsed(arguments)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    sandbox = open_sandbox(options.sandbox)  # refused at once, not after the model is loaded
    say(f"programs run in {sandbox.name}; what can be used here: {json.dumps(probe())}")
    plan, task = plan_of(options), task_of(options, sandbox)
    arms = [Arm.of(text) for text in options.arms.split(",") if text]
    seeds = [int(seed) for seed in options.seeds.split(",") if seed]
    figures = run_all(plan, task, arms, seeds, warm=not options.no_warm_up)
    figures["runs"] = {
        f"{arm.name}/seed-{seed}": found
        for arm in arms
        for seed in seeds
        if (found := figures_of(plan, task, arm, seed))
    }
    print(json.dumps(figures), flush=True)
    if figures["failed"]:
        raise SystemExit(1)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--mbpp", type=Path, required=True, help="all 974 problems")
    parser.add_argument("--humaneval", type=Path, required=True)
    parser.add_argument("--arms", default="grpo,dare", help="with commas between them")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=512, help="longest response")
    parser.add_argument("--eval-every", type=int, default=15, metavar="STEPS")
    parser.add_argument("--mbpp-test", type=int, default=200, help="problems of it; 0: none")
    parser.add_argument("--sandbox", default="auto", help="auto, bwrap, landlock, none")
    parser.add_argument("--time-limit", type=float, default=4.0, help="CPU seconds of a test")
    return parser.parse_args(arguments)


def task_of(options: argparse.Namespace, sandbox: Sandbox) -> Task:
    """MBPP to train on, HumanEval and other problems of MBPP to evaluate on."""
    reward = make_code_reward(sandbox=sandbox, time_limit_s=options.time_limit)
    with tempfile.TemporaryDirectory() as folder:
        mbpp = loaded("mbpp-all", options.mbpp, Path(folder) / "mbpp" / "all")
        humaneval = loaded("humaneval", options.humaneval, Path(folder) / "humaneval" / "test")
    tested = [one for one in mbpp if number(one) in TESTED][: options.mbpp_test]
    trained = [one for one in mbpp if number(one) in TRAINED]
    # Parts of MBPP share a few problems in other words.
    evaluated = [NamedText("evaluated", one.id, one.text) for one in (*tested, *humaneval)]
    known = Decontaminator(evaluated).match([one.text for one in trained])
    rows = [row_of(one) for one, found in zip(trained, known, strict=True) if not found]
    say(f"{len(rows)} problems to train on, {len(trained) - len(rows)} left out as evaluated")
    sets = [evaluation_set("humaneval", humaneval, reward, options.tokens)]
    if tested:
        sets.append(evaluation_set("mbpp-test", tested, reward, options.tokens))
    training = {
        **common_training(options),
        "max_completion_length": options.tokens,
        "system_prompt": benchmark("humaneval").template,
    }
    return Task("code", rows, reward, tuple(sets), training, {"sandbox": sandbox.name})


def loaded(name: str, file: Path, place: Path) -> list[Problem]:
    """The problems of a shipped benchmark, from a file that lies anywhere."""
    place.parent.mkdir(parents=True)
    endings = "".join(file.suffixes[-2:] if file.suffix == ".gz" else file.suffixes[-1:])
    shutil.copy(file, place.with_name(place.name + endings))
    return load_problems(benchmark(name), place.parent.parent)


def number(problem: Problem) -> int:
    """Of a problem of MBPP, whose ids are `mbpp/601` or bare numbers."""
    return int(problem.id.rpartition("/")[2])


def row_of(problem: Problem) -> Row:
    """A problem to train on."""
    return {
        "prompt": problem.prompt,
        "tests": problem.columns["tests"],
        "kind": problem.columns["kind"],
        "solution": problem.solution,
        "source": "mbpp",
    }


def evaluation_set(
    name: str, problems: Sequence[Problem], reward: RewardFunction, tokens: int
) -> EvalSet:
    """Problems with their tests, as they are trained on."""
    rows = [
        {name: value for name, value in row_of(one).items() if name in ("prompt", "tests", "kind")}
        for one in problems
    ]
    return EvalSet(name, rows, reward, tokens)


def figures_of(plan: Plan, task: Task, arm: Arm, seed: int) -> dict[str, Any] | None:
    """What is asked of a finished run; None where it is not there."""
    file = plan.folder(task, arm, seed) / "summary.json"
    if not file.is_file():
        return None
    summary = json.loads(file.read_text(encoding="utf-8"))
    spent = summary["phases"].get("reward", 0.0)
    return {
        "accuracy": summary["accuracy"],
        **summary["about"],
        "unscored_share": summary["unscored_share"],
        "sandbox_s": round(spent, 1),
        "sandbox_share": round(spent / max(summary["seconds"], 1e-9), 3),
        **{name: summary[name] for name in ("steps", "tokens", "seconds", "varied_share")},
    }


if __name__ == "__main__":
    main()
