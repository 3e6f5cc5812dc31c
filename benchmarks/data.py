"""Does the memory of `dare data prepare` grow with the data, and how fast is it?

    python benchmarks/data.py [--rows 1000000] [--sets DIR] [--out FILE.json]

Writes JSON lines of random word problems with planted repeats and planted evaluation problems,
prepares them (schema, repeats, decontamination by text and n-grams, Parquet) in a process of its
own, and compares peak memory with that of a tenth of the rows. Evaluation sets are 3,000 made-up
problems, and with --sets also the real ones in DIR. Every planted row must be found and no other
row dropped. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPEAT, RESTYLED, COPY, REWORDED = 50, 100, 500, 1000  # one row in so many
_EXAM = 3000


def words(rng: random.Random, count: int) -> str:
    """A text of made-up words, some of them common."""
    made = [
        rng.choice(("the", "of", "a", "is", "find", "and"))
        if rng.random() < 0.4
        else "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9)))
        for _ in range(count)
    ]
    return " ".join(made)


def problem(rng: random.Random) -> str:
    """A problem of 20 to 60 words with TeX and numbers."""
    a, b = rng.randrange(10**6), rng.randrange(10**6)
    head, tail = words(rng, rng.randint(10, 30)), words(rng, rng.randint(10, 30))
    return f"{head} ${a}x + \\frac{{{b}}}{{7}}$ {tail}?"


def rows(count: int, exam: list[str], planted: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Problems, of which some were there before and some are in the exam."""
    rng = random.Random(0)
    earlier: list[str] = []
    for number in range(count):
        text = problem(rng)
        if number % REPEAT == 1:
            text = rng.choice(earlier)
            planted["repeats"] += 1
        elif number % RESTYLED == 2:
            text = rng.choice(earlier).replace("$", " \\( ", 1).replace("$", " \\) ").upper()
            text = text.replace("\\FRAC", "\\dfrac")
            planted["restyled"] += 1
        elif number % COPY == 3:
            text = rng.choice(exam)
            planted["copies"] += 1
        elif number % REWORDED == 4:
            text = "Please answer this: " + rng.choice(exam) + " Give a reason."
            planted["reworded"] += 1
        elif len(earlier) < 5000:
            earlier.append(text)
        level = rng.randint(1, 5)
        yield {"problem": text, "answer": str(number), "level": level, "topic": words(rng, 3)}


def child(source: str, exam: str, sets: str, out: str) -> None:
    """Prepare the file and print the report."""
    from dare.data import load_spec, prepare

    names = exam if not sets else f"{exam},{_local(Path(sets))}"
    folder = Path(sets) if sets else None
    spec = load_spec([source], folder, decontaminate=names)
    print(json.dumps(prepare(spec, Path(out))))


def _local(folder: Path) -> str:
    from dare.data.contamination import load_sets

    return ",".join(load_sets("all", folder).counts)


def measure(folder: Path, count: int, exam: list[str], sets: str) -> dict[str, Any]:
    """Make `count` rows, prepare them elsewhere and check what was dropped."""
    planted = dict.fromkeys(("repeats", "restyled", "copies", "reworded"), 0)
    source, out = folder / f"{count}.jsonl", folder / f"{count}.parquet"
    with source.open("w") as file:
        for row in rows(count, exam, planted):
            file.write(json.dumps(row) + "\n")
    started = time.monotonic()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        words = [sys.executable, __file__, "--child", str(source), str(folder / "exam.jsonl"), sets]
        os.execv(sys.executable, [*words, str(out)])
    os.close(write)
    with os.fdopen(read) as answer:
        report = json.loads(answer.read())
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, status
    seconds, cpu = time.monotonic() - started, usage.ru_utime + usage.ru_stime
    lost = report["sources"][0]["dropped"]
    found = {
        "repeats": lost["same_text"],
        "restyled": lost["same_text_after_normalisation"],
        "copies": lost["evaluation_problems_by_text"],
        "reworded": lost["evaluation_problems_by_ngrams"],
    }
    size = source.stat().st_size
    source.unlink()
    return {
        "rows": count,
        "input_mb": round(size / 2**20),
        "peak_rss_mb": round(usage.ru_maxrss / 1024),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "rows_per_second": round(count / seconds),
        "rows_per_cpu_second": round(count / cpu),
        "planted": planted,
        "found": found,
        "kept": report["rows"],
    }


def main() -> None:
    """Measure a tenth of the rows and all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sets", default="", help="folder with local copies of evaluation sets")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = random.Random(1)
        exam = [problem(rng) for _ in range(_EXAM)]
        lines = (json.dumps({"problem": text, "id": place}) for place, text in enumerate(exam))
        (folder / "exam.jsonl").write_text("\n".join(lines) + "\n")
        runs = []
        for count in (chosen.rows // 10, chosen.rows):
            runs.append(measure(folder, count, exam, chosen.sets))
            print(runs[-1], flush=True)
    few, many = runs
    grown = (many["peak_rss_mb"] - few["peak_rss_mb"]) * 2**20 / (many["rows"] - few["rows"])
    line = json.dumps({"runs": runs, "bytes_of_memory_per_row": round(grown, 1)})
    if chosen.out:
        chosen.out.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:6])
    else:
        main()
