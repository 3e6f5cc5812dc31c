"""Every gold of every evaluation set against itself, through the evaluation path.

    python benchmarks/eval_golds.py [--data DIR] [--benchmarks NAMES] [--out FILE.json]
    python benchmarks/eval_golds.py --responses [--data DIR] [--files NAMES] [--out FILE.json]

DIR holds the data sets (see docs/data.md); benchmarks that are absent are named as such. A
mathematical gold is answered in the form that the benchmark's template asks for, a program with its
reference solution. LiveCodeBench has no reference solutions: there a program that looks the
expected outputs up must pass, and one that does not give them must fail. Rows not right are listed.
With --responses, saved responses of real models are evaluated instead, with the model out of the
loop. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput
from dare.evaluation.benchmarks import Benchmark, Problem, benchmark, benchmark_names, load_problems
from dare.evaluation.responses import ResponseFile
from dare.evaluation.run import evaluate, score
from dare.evaluation.sources import FromFile

SAVED = {
    "math500_orz7b_t0": "math500",
    "math500_orz7b_t1": "math500",
    "gsm8k_openai_example_solutions": "gsm8k",
    "qwen2.5coder_1.5b_base_humaneval_evalplus": "humaneval",
    "qwen2.5coder_7b_base_humaneval_evalplus": "humaneval",
    "humaneval_codegen16b_100samples": "humaneval",
}


def gold_response(item: Benchmark, problem: Problem) -> str:
    """What a policy that knows the answer would say."""
    if not item.is_code:
        gold = problem.gold
        return f"#### {gold}" if item.template == "gsm8k" else f"\\boxed{{{gold}}}"
    return f"````python\n{problem.solution or lookup(problem, right=True)}\n````"


def lookup(problem: Problem, *, right: bool) -> str:
    """A program that knows what its tests expect, and gives it or something else."""
    tests = problem.columns["tests"]
    if problem.columns["kind"] == "stdin":
        known = {test["input"]: test["output"] for test in tests}
        answer = "print(KNOWN[sys.stdin.read()])" if right else "print('neither', 'this', 'nor')"
        return f"import sys\nKNOWN = {known!r}\n{answer}\n"
    known_calls = [(list(test["args"]), test["output"]) for test in tests]
    name = tests[0]["fn"].rpartition(".")[2]
    answer = "next(v for a, v in KNOWN if a == list(args))" if right else "object()"
    return (
        f"KNOWN = {known_calls!r}\nclass Solution:\n    def {name}(self, *args):\n"
        f"        return {answer}\n"
    )


def golds(item: Benchmark, data: Path) -> dict[str, Any]:
    """Load one benchmark and score its golds."""
    began = time.monotonic()
    problems = load_problems(item, data)
    loaded = time.monotonic()
    values = score(item, problems, [[gold_response(item, problem)] for problem in problems])
    found = [value[0] for value in values]
    wrong = [problem.id for problem, value in zip(problems, found, strict=True) if value != 1.0]
    figures: dict[str, Any] = {
        "problems": len(problems),
        "expected": item.rows,
        "right": len(problems) - len(wrong),
        "unscored": sum(value is None for value in found),
        "not_right": wrong,
        "load_s": round(loaded - began, 2),
        "score_s": round(time.monotonic() - loaded, 2),
    }
    unknown = [problem for problem in problems if item.is_code and problem.solution is None]
    if unknown:
        bad = [[f"````python\n{lookup(problem, right=False)}\n````"] for problem in unknown]
        figures["looked_up"] = len(unknown)
        figures["wrong_accepted"] = sum(value[0] != 0.0 for value in score(item, unknown, bad))
    print(f"{item.name}: {figures}", flush=True)
    return figures


def saved(name: str, item: Benchmark, data: Path, out: Path) -> dict[str, Any] | None:
    """Evaluate one file of responses end to end."""
    path = next(iter(sorted((data / "rollouts").glob(f"{name}.jsonl*"))), None)
    if path is None:
        return None
    file = ResponseFile(path)
    settings = {"responses": path.name, "digest": file.digest}
    figures = evaluate([item], FromFile(file), out / name, settings, data_dir=data)
    one = figures["benchmarks"][item.name]
    keys = ("problems", "missing", "samples", "form", "accuracy", "low", "high", "interval")
    kept = {key: one[key] for key in (*keys, "solved", "unscored", "responses")}
    kept["unmatched_rows"] = len(file.unmatched())
    for key in ("by_level", "by_name"):
        if one.get(key):
            kept[key] = {
                group: {k: values[k] for k in ("problems", "accuracy", "low", "high")}
                for group, values in one[key].items()
            }
    kept["labels"] = one.get("labels")
    kept["pass_at_k"] = one["pass_at_k"]
    shown = {key: value for key, value in kept.items() if key not in ("pass_at_k", "labels")}
    print(f"{name}: {shown}", flush=True)
    return kept


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=shared)
    parser.add_argument("--benchmarks", default=",".join(benchmark_names()))
    parser.add_argument("--responses", action="store_true", help="evaluate saved responses instead")
    parser.add_argument("--files", default=",".join(SAVED), help="which of them")
    parser.add_argument("--work", type=Path, help="folder of the evaluations; kept and resumed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    if options.responses:
        with tempfile.TemporaryDirectory() as folder:
            for name in options.files.split(","):
                place = options.work or Path(folder)
                result[name] = saved(name, benchmark(SAVED[name]), options.data, place)
    else:
        for name in options.benchmarks.split(","):
            try:
                result[name] = golds(benchmark(name), options.data)
            except InvalidInput as error:
                print(f"{name}: not here ({error})", flush=True)
                result[name] = None
        there = [figures for figures in result.values() if figures]
        total = {key: sum(figures[key] for figures in there) for key in ("problems", "right")}
        result = {"total": {**total, "sets": len(there)}, **result}
    if options.out:
        text = json.dumps(result, indent=1) + "\n"
        options.out.write_text(text, encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
