"""Runs the corpora in one sandbox and says what went wrong; `python run_corpus.py bwrap`.

Words after the name are of programs to leave out: `python run_corpus.py bwrap hostile_function`.

Things outside that no program may reach: a file to read, a folder to write to, a port to connect
to, a word in the environment. Prints one JSON object: `problems`, one line each, and counts.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import stat
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

from dare_sandbox import open_sandbox
from dare_verify.code import judge_batch
from dare_verify.code.trials import Verdict

HERE = Path(__file__).parent / "corpus"
LIMITS: dict[str, Any] = {"time_limit_s": 1.0, "memory_mb": 256}
SHORT_S = 0.3  # for what is there to run into the time limit
LONG_S = 3.0  # for what must not: fork bombs beside it leave it little of the machine
ADOPT_ORPHANS = 36


class Outside:
    """What is there to be reached."""

    def __init__(self, folder: Path) -> None:
        self.secret = "canary-" + os.urandom(8).hex()
        os.environ["DARE_CANARY"] = self.secret
        folder.chmod(0o755)
        self.canary, self.open = folder / "canary", folder / "open"
        self.canary.write_text(self.secret)
        self.open.mkdir()
        self.open.chmod(0o777)
        (self.open / "keep").write_text("keep")
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.letters = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.letters.bind(("127.0.0.1", self.port))

    def fill(self, value: Any) -> Any:
        """Replace the @WORDS@ of a program or test."""
        if isinstance(value, str):
            known = {
                "@CANARY@": self.canary,
                "@SECRET@": self.secret,
                "@OPEN@": self.open,
                "@PORT@": self.port,
                "@PID@": os.getpid(),
            }
            for word, real in known.items():
                value = value.replace(word, str(real))
        elif isinstance(value, list):
            value = [self.fill(item) for item in value]
        elif isinstance(value, dict):
            value = {name: self.fill(item) for name, item in value.items()}
        return value

    def damage(self) -> list[str]:
        """What a program did reach."""
        found = [] if os.listdir(self.open) == ["keep"] else ["the folder outside was changed"]
        for kind, line in (("connection", self.server), ("datagram", self.letters)):
            line.setblocking(False)
            try:
                line.accept() if line is self.server else line.recv(100)
                found.append(f"a {kind} reached the port outside")
            except BlockingIOError:
                pass
            line.close()
        return found


def tests_of(entry: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The tests of an entry; large ones are made here."""
    if "tests" in entry:
        return list(entry["tests"])
    if kind == "assert":
        code = entry.get("code", 'def check(candidate):\n    assert candidate(7) == "right"\n')
        fields = {"entry_point": entry.get("entry_point", "f"), "helpers": entry.get("helpers", "")}
        return [{"code": code, **fields}]
    output = entry.get("output", "right" if kind == "function" else "")
    sys.set_int_max_str_digits(0)
    if "output_power" in entry:
        output = 7 ** entry["output_power"]
    if "output_range" in entry:
        output = list(range(entry["output_range"]))
    if kind == "function":
        name = entry.get("fn", "f")
        return [{"fn": name, "args": entry.get("args", [7]), "output": output}]
    given = entry.get("input", "")
    if "output_lines" in entry:
        output = [str(n) for n in range(entry["output_lines"])]
    if "input_lines" in entry:
        given = [str(n) for n in range(entry["input_lines"])]
    if "input_power" in entry:
        given = str(7 ** entry["input_power"])
    return [{"input": given, "output": str(output) if isinstance(output, int) else output}]


def entries() -> list[tuple[str, bool, str, dict[str, Any]]]:
    """Name, whether it is honest, kind and entry of every program."""
    found = []
    for path in sorted(HERE.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["program"]:
            honest = path.stem == "honest"
            kind = entry.get("kind") or ("stdin" if honest else path.stem.split("_")[1])
            found.append((f"{path.stem} {entry['name']}", honest, kind, entry))
    return found


def time_limit(entry: dict[str, Any]) -> float:
    """Seconds of CPU time that a program may use."""
    verdicts = entry.get("verdicts")
    if verdicts is None or "time_limit" in verdicts[1:]:
        return float(LIMITS["time_limit_s"])
    return SHORT_S if verdicts[0] == "time_limit" else LONG_S


def fault(name: str, honest: bool, entry: dict[str, Any], verdict: Verdict) -> str | None:
    """What is wrong with a verdict."""
    said = f"{name}: {verdict.verdict} ({verdict.message[:200]!r}, {verdict.stderr[-200:]!r})"
    if honest:
        return None if verdict.passed is True else said
    right = verdict.passed is False and verdict.verdict in entry.get("verdicts", [verdict.verdict])
    return None if right else said


def left_behind(before: set[int]) -> list[str]:
    """Processes that outlived the sandbox: orphans are adopted by this process."""
    end = time.monotonic() + 30
    while (left := children() - before) and time.monotonic() < end:
        time.sleep(0.05)
    return [f"process {pid} was left behind" for pid in left]


def children() -> set[int]:
    """Processes started by any thread of this one that have not ended."""
    found = set()
    for path in Path("/proc/self/task").glob("*/children"):
        found |= {int(word) for word in path.read_text().split()}
    for pid in list(found):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "Z"
        if state == "Z":
            found.discard(pid)
    return found


def run(name: str, *without: str) -> dict[str, Any]:
    """All programs in the sandbox of that name, but those with these words in theirs."""
    ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    before = children()
    files = set(os.listdir("/proc/self/fd"))
    with tempfile.TemporaryDirectory() as folder:
        outside = Outside(Path(folder))
        chosen = [
            (label, honest, kind, outside.fill(entry))  # before large tests are made of it
            for label, honest, kind, entry in entries()
            if not any(word in label for word in without)
        ]
        items = [
            {"program": entry["source"], "tests": tests_of(entry, kind)}
            | {"kind": kind, "time_limit_s": time_limit(entry)}
            for _, _, kind, entry in chosen
        ]
        sandbox = open_sandbox(name)
        began = time.monotonic()
        verdicts = judge_batch(items, sandbox=sandbox, workers=8, **LIMITS)
        seconds = time.monotonic() - began
        found = [
            fault(label, honest, entry, verdict)
            for (label, honest, _, entry), verdict in zip(chosen, verdicts, strict=True)
        ]
        # Beside fork bombs, of the others or of another run of these tests, one may not get to
        # run, or what it prints is not read in time: it is asked alone. One that passed is not.
        for pause_s in (0, 20, 60, 120):
            asked = [
                place
                for place, words in enumerate(found)
                if words and (chosen[place][1] or verdicts[place].passed is not True)
            ]
            time.sleep(pause_s if asked else 0)
            for place in asked:
                label, honest, _, entry = chosen[place]
                verdict = judge_batch([items[place]], sandbox=sandbox, workers=1, **LIMITS)[0]
                verdicts[place], found[place] = verdict, fault(label, honest, entry, verdict)
        sandbox.close()
        problems = [words for words in found if words] + left_behind(before) + outside.damage()
    if threading.active_count() > 1:
        problems.append(f"{threading.active_count() - 1} threads were left behind")
    if stray := sorted(set(os.listdir("/proc/self/fd")) - files):
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in stray if fd_open(fd)]
        problems += [f"descriptor of {link} was left open" for link in links]
    trusted = sum(row[1] for row in chosen)
    counts = {"hostile": len(chosen) - trusted, "honest": trusted, "seconds": round(seconds, 1)}
    return {"problems": problems, **counts, "user": os.getuid(), "sandbox": name}


def fd_open(number: str) -> bool:
    """Whether it is open and not a listing of descriptors."""
    try:
        return not stat.S_ISDIR(os.fstat(int(number)).st_mode)
    except OSError:
        return False


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
