"""The judge and its sandbox under load: verdicts, speed, and what is left behind.

    python benchmarks/sandbox.py --count 10000
    python benchmarks/sandbox.py --count 500 --backend landlock --out landlock.json

Right, wrong, failing, hanging and hostile programs are judged at twice the number of cores. Every
verdict is known beforehand; afterwards the machine is searched for leftovers. The last line
printed is one JSON object with all figures:

    tests_per_s         ordinary tests a second (standard input, right and wrong), sandbox warm
    mixed_per_s         the same of the mixture, in which some programs hang until their limit and
                        assertions take two programs each
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from dare_sandbox import Ended, Job, close_all, open_sandbox
from dare_sandbox.inside import system
from dare_verify.code import judge

WARM_UP = 200
PLAIN = 2000

_SUM = "n = int(input())\nprint(sum(map(int, input().split())))"
_GCD = "def gcd(a, b):\n    while b: a, b = b, a % b\n    return a"
_DAEMON = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)\nos._exit(0)"
_FILES = (
    "import tempfile\nf = tempfile.NamedTemporaryFile(delete=False)\nf.write(b'x'); print(input())"
)
_STDIN = {"tests": [{"input": "3\n1 2 3\n", "output": "6\n"}]}
_ECHO = {"tests": [{"input": "x\n", "output": "x\n"}]}
_NOTHING = {"tests": [{"input": "", "output": ""}]}
_CALL = {"kind": "function", "tests": [{"fn": "gcd", "args": [12, 18], "output": 6}]}
_ASSERT = {
    "kind": "assert",
    "tests": [{"code": "def check(f):\n    assert f(12, 18) == 6", "entry_point": "gcd"}],
}

# (one in how many, verdict, program, the rest of the call)
CASES: list[tuple[int, str, str, dict[str, Any]]] = [
    (1, "accepted", _SUM, _STDIN),
    (2, "accepted", _FILES, _ECHO),
    (3, "wrong_answer", _SUM.replace("sum(", "max("), _STDIN),
    (4, "accepted", _GCD, _CALL),
    (5, "runtime_error", "1 / 0", _STDIN),
    (7, "wrong_answer", _GCD.replace("return a", "return -a"), _CALL),
    (10, "accepted", _GCD, _ASSERT),
    (20, "accepted", _DAEMON, _NOTHING),
    (100, "output_limit", "while True: print('x' * 65536)", _STDIN),
    (
        200,
        "memory_limit",
        "x = []\nwhile True: x.append(b'x' * (1 << 22))",
        {**_STDIN, "memory_mb": 64},
    ),
    (500, "time_limit", "while True: pass", {**_STDIN, "time_limit_s": 0.5}),
    (500, "time_limit", "import time; time.sleep(60)", {**_STDIN, "time_limit_s": 0.5}),
]


def mixture(count: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The cases in turn, the rarer ones as often as they say."""
    turns = (case[1:] for turn in itertools.count(1) for case in CASES if turn % case[0] == 0)
    return itertools.islice(turns, count)


def leftovers() -> dict[str, int]:
    """Processes, mounts, descriptors, cgroups and temporary files of this process's sandboxes."""
    time.sleep(0.3)  # zombies are buried within a tenth of a second
    mine = f"dare-sandbox-{os.getpid()}-"
    return {
        "processes": len(system.descendants(os.getpid())),
        "mounts": Path("/proc/self/mountinfo").read_text().count("\n"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "cgroups": len(list(Path("/sys/fs/cgroup").glob(f"**/{mine}*"))),
        "files": sum(name.startswith(mine) for name in os.listdir(tempfile.gettempdir())),
    }


def resident_mb() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _cpu_s() -> float:
    """Processor time of this process and of all that has ended below it."""
    return sum(os.times()[:4])


def cold_ms(backend: str) -> float:
    """From nothing to the end of a first program; the median of five."""
    times = []
    for _ in range(5):
        close_all()
        started = time.perf_counter()
        result = open_sandbox(backend).run(Job("pass"))
        times.append((time.perf_counter() - started) * 1000)
        assert result.ended is Ended.EXITED, result
    return statistics.median(times)


def measure(backend: str, count: int) -> dict[str, Any]:
    """Judge `count` programs and search for what they left."""
    backend = open_sandbox(backend).name  # it is tried here; later openings are only starts
    close_all()
    before = leftovers()
    cold = cold_ms(backend)

    def one(case: tuple[str, str, dict[str, Any]]) -> str:
        expected, program, call = case
        verdict = judge(program, sandbox=backend, **call)
        return "" if verdict.verdict == expected else f"{expected} -> {verdict.verdict}"

    workers = 2 * (os.cpu_count() or 1)
    changes: collections.Counter[str] = collections.Counter()
    memory, spent = resident_mb(), _cpu_s()
    with ThreadPoolExecutor(workers) as pool:
        every = [case[1:] for case in CASES for _ in range(workers)]
        warm_up = [*every, *mixture(min(WARM_UP, count))]
        changes.update(pool.map(one, warm_up))
        plain = [CASES[place % 3][1:] for place in range(min(count, PLAIN))]
        started = time.perf_counter()
        changes.update(pool.map(one, plain))
        plain_s = time.perf_counter() - started
        started = time.perf_counter()
        results = pool.map(one, mixture(count))
        console = Console(stderr=True)
        changes.update(
            track(results, f"{backend}", count, console=console, disable=not console.is_terminal)
        )
        wall_s = time.perf_counter() - started
    growth = resident_mb() - memory
    close_all()
    after = leftovers()
    leaks = {name: max(0, after[name] - before[name]) for name in before}
    del changes[""]
    cpu_ms = (_cpu_s() - spent) / (count + len(plain) + len(warm_up)) * 1000
    return {
        "backend": backend,
        "count": count,
        "workers": workers,
        "tests_per_s": round(len(plain) / plain_s, 1),
        "mixed_per_s": round(count / wall_s, 1),
        "cpu_ms_per_test": round(cpu_ms, 2),
        "cold_ms": round(cold, 1),
        "leaks": sum(leaks.values()),
        "judge_mb_growth": round(growth, 1),
        "verdict_changes": sum(changes.values()),
        "changed": dict(changes),
        "left": leaks,
    }


def main() -> int:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="programs to judge")
    parser.add_argument("--backend", default="auto", help="auto, bwrap or landlock")
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    figures = measure(options.backend, options.count)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures))
    return 1 if figures["leaks"] or figures["verdict_changes"] else 0


if __name__ == "__main__":
    sys.exit(main())
