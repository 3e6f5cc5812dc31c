"""How many hints show the answer, or how much of the program, and how many prompts get a hint?

    python benchmarks/hints.py --data DIR

DIR holds gsm8k/, math/, math_level3to5/, humaneval/, mbpp/, leetcode/ and rollouts/ as JSON lines;
sets that are absent are skipped. What hints show is counted by `tests/hints/leak_rule.py` and
`program_rule.py` there, which share no code with the guards. The last line is JSON.
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

from dare_hints.programs import SHARE, outline
from dare_hints.skeletons import skeleton

Case = tuple[str, str]  # solution, and its answer or the prompt of a program
_RULES = Path(__file__).parent.parent / "tests" / "hints"


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
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


def humaneval_models(data: Path) -> Iterator[Case]:
    """Rollouts of Qwen2.5-Coder (1.5B and 7B, base) on HumanEval that passed its tests."""
    prompts = {row["id"]: row["problem"] for row in _rows(data / "humaneval/test.jsonl")}
    for size in ("1.5b", "7b"):
        name = f"rollouts/qwen2.5coder_{size}_base_humaneval_evalplus.jsonl"
        for row in _rows(data / name):
            if row["base_status"] == "pass":
                yield row["solution"], prompts[row["id"]]


def mbpp(data: Path) -> Iterator[Case]:
    """Reference programs of MBPP."""
    for row in _rows(data / "mbpp/all.jsonl.gz"):
        yield row["canonical_solution"].replace("\r\n", "\n"), row["problem"]


def leetcode(data: Path) -> Iterator[Case]:
    """Reference programs of LeetCode."""
    for row in _rows(data / "leetcode/train_1889.jsonl.gz"):
        yield row["canonical_solution"], row["problem"]


Sets = dict[str, Callable[[Path], Iterator[Case]]]
SETS: Sets = {
    "gsm8k": gsm8k,
    "math": math,
    "gsm8k_models": gsm8k_models,
    "math_models": math_models,
}
PROGRAMS: Sets = {"humaneval_models": humaneval_models, "mbpp": mbpp, "leetcode": leetcode}


def load(name: str, data: Path) -> list[Case]:
    """The cases of one set; prompts with an empty answer cannot be hinted and are left out."""
    return [(s, a) for s, a in {**SETS, **PROGRAMS}[name](data) if s.strip() and a.strip()]


def hints_of(cases: list[Case], workers: int, *, programs: bool = False) -> list[list[str]]:
    """The hint of every case, over several processes."""
    make: Callable[..., list[str]] = outline if programs else skeleton
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(make, *zip(*cases, strict=True), chunksize=64))


def measure(cases: list[Case], hints: list[list[str]]) -> dict[str, float]:
    """Leaks by the second rule, plain substring hits, and how often there is anything to show."""
    leaks: Callable[[str, str], bool] = runpy.run_path(str(_RULES / "leak_rule.py"))["leaks"]
    shown = [(f, answer) for (_, answer), found in zip(cases, hints, strict=True) for f in found]
    return {
        "n": len(cases),
        "leaks": sum(leaks(fragment, answer) for fragment, answer in shown),
        "substring_hits": sum(a.strip() in fragment for fragment, a in shown),
        "usable_share": round(sum(len(h) > 0 for h in hints) / len(cases), 4),
        "three_share": round(sum(len(h) > 2 for h in hints) / len(cases), 4),
    }


def measure_programs(cases: list[Case], hints: list[list[str]]) -> dict[str, float]:
    """Share of a program's lines that its hint shows by the second rule, over the hints made."""
    rule: Callable[..., tuple[int, int]] = runpy.run_path(str(_RULES / "program_rule.py"))["shown"]
    pairs = [
        rule(program, prompt, "\n".join(found))
        for (program, prompt), found in zip(cases, hints, strict=True)
        if found
    ]
    shares = [shown / total for shown, total in pairs if total]
    return {
        "n": len(cases),
        "over": sum(share > SHARE + 1e-9 for share in shares),
        "most": round(max(shares), 4),
        "mean": round(sum(shares) / len(shares), 4),
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
    for sets, programs in ((SETS, False), (PROGRAMS, True)):
        judge = measure_programs if programs else measure
        for name in sets:
            try:
                cases = load(name, options.data)
            except FileNotFoundError as missing:
                print(f"{name:18} skipped: {missing.filename} is absent")
                continue
            began = time.perf_counter()
            hints = hints_of(cases, options.workers, programs=programs)
            seconds = time.perf_counter() - began
            report[name] = judge(cases, hints)
            found = "  ".join(f"{key} {value}" for key, value in report[name].items())
            print(f"{name:18} {found}  {seconds:.1f} s")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
