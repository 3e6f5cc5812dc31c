"""The code judge on public data: reference solutions, and programs that others have judged.

    python benchmarks/code_judge.py --data DIR [--sets humaneval,mbpp] [--sandbox auto]
                                    [--workers N] [--limit N] [--out FILE.json]

Sets: `humaneval`, `humaneval_plus`, `mbpp` and `leetcode` run reference solutions; `rollouts` and
`rollouts_plus` judge model-written programs whose EvalPlus verdicts are known; `code_contests` and
`apps` have no reference programs, so every problem is run with one program that prints the right
answers and one that does not. Rows that did not come out as they should are listed. HumanEval+/32
is run as EvalPlus runs it: its test as published calls the wrong function.
Ends with one JSON line: for every set, rows, rows as they should be, unscored, and seconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dare_verify.code import Verdict, judge_batch

Row = dict[str, Any]
Case = tuple[str, bool, Row]  # name, whether it should pass, item of judge_batch

LEETCODE = """from typing import *
from collections import *
from functools import *
from itertools import *
from heapq import *
from bisect import *
from math import *
from operator import *
from string import *
import collections, datetime, functools, heapq, itertools, math, random, re, string, sys
inf = float("inf")
"""


def read(path: Path) -> list[Row]:
    """Objects of a file of JSON lines, zipped or not."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def humaneval(data: Path) -> Iterator[Case]:
    """Reference solutions on the 164 original tests."""
    for row in read(data / "humaneval/test.jsonl"):
        yield row["id"], True, asserted(row["problem"] + row["canonical_solution"], row)


def humaneval_plus(data: Path) -> Iterator[Case]:
    """Reference solutions on the tests of EvalPlus."""
    solutions = {row["id"]: row for row in read(data / "humaneval_plus/test.jsonl.gz")}
    for row in read(data / "humaneval_plus/test_originfmt.jsonl.gz"):
        solved = solutions[row["id"]]
        yield row["id"], True, asserted(solved["problem"] + solved["canonical_solution"], row)


def asserted(program: str, row: Row, helpers: str = "") -> Row:
    """An item with one test in the style of HumanEval."""
    code = row["tests"].replace(
        "assert _poly(*candidate(*inp), inp) <= 0.0001",
        "assert abs(_poly(*inp, candidate(*inp))) <= 0.0001",
    )
    test = {"code": code, "entry_point": row["entry_point"], "helpers": helpers}
    return {"program": program, "tests": [test], "kind": "assert"}


def mbpp(data: Path) -> Iterator[Case]:
    """Reference solutions on three assertions each."""
    for row in read(data / "mbpp/all.jsonl.gz"):
        test = {"code": row["tests"], "setup": row["test_setup_code"]}
        item = {"program": row["canonical_solution"], "tests": [test], "kind": "assert"}
        yield row["id"], True, item


def leetcode(data: Path) -> Iterator[Case]:
    """Reference solutions that need no trees or linked lists, which the set does not carry."""
    for row in read(data / "leetcode/train_1889.jsonl.gz"):
        if not re.search(r"\b(tree_node|list_node)\b", row["tests"]):
            test = {"code": row["tests"], "prelude": LEETCODE}
            item = {"program": row["canonical_solution"], "tests": [test], "kind": "assert"}
            yield row["id"], True, item


def rollouts(data: Path) -> Iterator[Case]:
    """Programs of two models on the original tests."""
    tests = {row["id"]: row for row in read(data / "humaneval/test.jsonl")}
    for size in ("1.5b", "7b"):
        for row in read(data / f"rollouts/qwen2.5coder_{size}_base_humaneval_evalplus.jsonl"):
            test = tests[row["id"]]
            passed = row["base_status"] == "pass"
            yield f"{size} {row['id']}", passed, asserted(row["solution"], test)


def rollouts_plus(data: Path) -> Iterator[Case]:
    """The same programs on the tests of EvalPlus."""
    tests = {row["id"]: row for row in read(data / "humaneval_plus/test_originfmt.jsonl.gz")}
    for size in ("1.5b", "7b"):
        for row in read(data / f"rollouts/qwen2.5coder_{size}_base_humaneval_evalplus.jsonl"):
            passed = row["base_status"] == row["plus_status"] == "pass"
            yield f"{size} {row['id']}", passed, asserted(row["solution"], tests[row["id"]])


def code_contests(data: Path) -> Iterator[Case]:
    """Every problem with a program that knows the answers and one that prints nothing right."""
    for row in read(data / "code_contests/test_165.jsonl.gz"):
        yield from printed(row["id"], row["tests"])


def apps(data: Path) -> Iterator[Case]:
    """The same for APPS: standard input or one function."""
    for row in read(data / "apps/mapcoder_selected_128.jsonl"):
        name = re.search(r"def\s+(\w+)", row["starter_code"])
        try:
            known = [(_lines(test["input"]), test["output"][0]) for test in row["tests"]]
        except ValueError:
            known = []  # words, not arguments
        if name is None or not known:
            yield from printed(row["id"], row["tests"])
            continue
        tests = [{"fn": name[1], "args": args, "output": value} for args, value in known]
        lookup = f"KNOWN = {known!r}\ndef {name[1]}(*args):\n    "
        right = "return next(v for a, v in KNOWN if a == list(args))"
        wrong = "return object()"
        for verdict, body in ((True, right), (False, wrong)):
            item = {"program": lookup + body, "tests": tests, "kind": "function"}
            yield f"{row['id']} {'right' if verdict else 'wrong'}", verdict, item


def printed(name: str, tests: list[Row]) -> Iterator[Case]:
    """A program that looks up what to print, and one that prints it wrongly."""
    known = {test["input"]: _joined(test["output"]) for test in tests}
    unique = [{"input": given, "output": output} for given, output in known.items()]
    lookup = f"import sys\nKNOWN = {known!r}\nanswer = KNOWN[sys.stdin.read()]\n"
    for verdict, body in ((True, "print(answer)"), (False, "print(answer, 'or not')")):
        item = {"program": lookup + body, "tests": unique, "kind": "stdin"}
        yield f"{name} {'right' if verdict else 'wrong'}", verdict, item


def _joined(output: Any) -> str:
    return output if isinstance(output, str) else "\n".join(map(str, output))


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


SETS: dict[str, Callable[[Path], Iterator[Case]]] = {
    maker.__name__: maker
    for maker in (
        humaneval,
        humaneval_plus,
        mbpp,
        leetcode,
        rollouts,
        rollouts_plus,
        code_contests,
        apps,
    )
}


def measure(name: str, cases: list[Case], options: Row) -> Row:
    """Judge one set and list what is not as it should be."""
    began = time.monotonic()
    verdicts = judge_batch([item for _, _, item in cases], **options)
    seconds = time.monotonic() - began
    right = unscored = 0
    odd: list[str] = []
    for (row, expected, _), verdict in zip(cases, verdicts, strict=True):
        right += verdict.passed is expected
        unscored += verdict.passed is None
        if verdict.passed is not expected:
            odd.append(described(row, expected, verdict))
    print(f"{name}: {right} of {len(cases)} as they should be, {seconds:.1f} s")
    print("".join(f"  {line}\n" for line in odd), end="", flush=True)
    slowest = max((verdict.cpu_s for verdict in verdicts), default=0.0)
    figures = {"rows": len(cases), "right": right, "unscored": unscored}
    return {**figures, "seconds": round(seconds, 1), "slowest_cpu_s": round(slowest, 2)}


def described(row: str, expected: bool, verdict: Verdict) -> str:
    """One row that came out wrong."""
    said = " ".join(verdict.message.split())[:120]
    wanted = "pass" if expected else "fail"
    return f"{row}: should {wanted}, {verdict.verdict} after {verdict.cpu_s:.1f} s: {said}"


def main() -> None:
    """Run the chosen sets."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--limit", type=int, default=None, help="rows of each set")
    parser.add_argument("--time-limit", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    options: Row = {"sandbox": chosen.sandbox, "workers": chosen.workers}
    options["time_limit_s"] = chosen.time_limit
    figures = {
        name: measure(name, list(SETS[name](chosen.data))[: chosen.limit], options)
        for name in chosen.sets.split(",")
    }
    line = json.dumps(figures)
    if chosen.out:
        chosen.out.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
