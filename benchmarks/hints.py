"""How many hints show the answer, and how many prompts get a hint at all?

    python benchmarks/hints.py --data DIR

DIR holds gsm8k/, math/, math_level3to5/ and rollouts/ as JSON lines; sets that are absent are
skipped. Leaks are counted by `tests/curriculum/leak_rule.py`, which shares no code with the guard.
The last line is JSON.
"""

import argparse
import gzip
import json
import runpy
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dare.curriculum.hints import skeleton

Case = tuple[str, str]  # solution, answer
_RULE = Path(__file__).parent.parent / "tests" / "curriculum" / "leak_rule.py"


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def gsm8k(data: Path) -> Iterator[Case]:
    """Training set, human solutions."""
    yield from ((r["solution"], r["answer"]) for r in _rows(data / "gsm8k/train.jsonl.gz"))


def math(data: Path) -> Iterator[Case]:
    """MATH levels 3 to 5, human solutions joined by id."""
    wanted = {r["id"] for r in _rows(data / "math_level3to5/train.jsonl.gz")}
    for part in ("train", "test"):
        for row in _rows(data / f"math/{part}.jsonl.gz"):
            if row["id"] in wanted:
                yield row["solution"], row["answer"]


def gsm8k_models(data: Path) -> Iterator[Case]:
    """Model-written GSM8K solutions judged correct."""
    for row in _rows(data / "rollouts/gsm8k_openai_example_solutions.jsonl.gz"):
        answer = row["ground_truth"].rpartition("A:")[2].strip()
        for value in row.values():
            if isinstance(value, dict) and value["is_correct"]:
                yield value["solution"], answer


def math_models(data: Path) -> Iterator[Case]:
    """Model-written chains of thought on MATH, right or wrong."""
    for row in _rows(data / "rollouts/qwen2.5math_math100_8samples.jsonl.gz"):
        yield from ((response, row["answer"]) for response in row["responses"])
    for name in ("t0", "t1"):
        for row in _rows(data / f"rollouts/math500_orz7b_{name}.jsonl.gz"):
            yield row["response"], row["expected"]


SETS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "gsm8k": gsm8k,
    "math": math,
    "gsm8k_models": gsm8k_models,
    "math_models": math_models,
}


def load(name: str, data: Path) -> list[Case]:
    """The cases of one set; prompts with an empty answer cannot be hinted and are left out."""
    return [(s, a) for s, a in SETS[name](data) if s.strip() and a.strip()]


def skeletons(cases: list[Case], workers: int) -> list[list[str]]:
    """The hint of every case, over several processes."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(skeleton, *zip(*cases, strict=True), chunksize=64))


def measure(cases: list[Case], hints: list[list[str]]) -> dict[str, float]:
    """Leaks by the second rule, plain substring hits, and how often there is anything to show."""
    leaks: Callable[[str, str], bool] = runpy.run_path(str(_RULE))["leaks"]
    shown = [(f, answer) for (_, answer), found in zip(cases, hints, strict=True) for f in found]
    return {
        "n": len(cases),
        "leaks": sum(leaks(fragment, answer) for fragment, answer in shown),
        "substring_hits": sum(a.strip() in fragment for fragment, a in shown),
        "usable_share": round(sum(len(h) > 0 for h in hints) / len(cases), 4),
        "three_share": round(sum(len(h) > 2 for h in hints) / len(cases), 4),
    }


def main() -> None:
    """Measure every set found under --data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds gsm8k/, math/")
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    report: dict[str, dict[str, float]] = {}
    print(f"{'set':14}{'n':>7}{'leaks':>7}{'substr':>8}{'usable':>9}{'three':>9}{'seconds':>9}")
    for name in SETS:
        try:
            cases = load(name, options.data)
        except FileNotFoundError as missing:
            print(f"{name:14} skipped: {missing.filename} is absent")
            continue
        began = time.perf_counter()
        hints = skeletons(cases, options.workers)
        seconds = time.perf_counter() - began
        row = report[name] = measure(cases, hints)
        print(
            f"{name:14}{row['n']:7}{row['leaks']:7}{row['substring_hits']:8}"
            f"{row['usable_share']:9.4f}{row['three_share']:9.4f}{seconds:9.1f}"
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
