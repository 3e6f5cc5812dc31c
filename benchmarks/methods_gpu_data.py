"""The mixture that `methods_gpu.py` trains on: half MATH of level 3 to 5, half DeepScaleR.

    python benchmarks/methods_gpu_data.py --sources math_level3to5/train.jsonl.gz,\
deepscaler/dare_train_10240.jsonl.gz --solutions math/train.jsonl.gz,math/test.jsonl.gz \
        --leave-out math500/test.jsonl.gz,gsm8k/test.jsonl.gz --out mixture4096.jsonl.gz

Files hold `problem` and `answer`, one JSON object a line. Every source gives the same number of
rows. Left out are problems of the evaluation sets (by normalised text and by n-grams), repeats,
figures ([asy]), long prompts, and answers that are empty or cannot be verified. A worked `solution`
is the row's own, or that of the same problem in one of the `--solutions`; null where there is none.
The same files and seed give the same bytes. Ends with one JSON line: what was left out, and why.

    python benchmarks/methods_gpu_data.py --sources math/test.jsonl.gz \
        --only-outside mixture4096.jsonl.gz --out math_outside.jsonl.gz

writes instead, in their order, the rows of the sources that the mixture does not use, by the same
measures, to be evaluated on. Long problems and figures stay, as they do in MATH-500; repeats and
answers that cannot be verified go.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dare.data.contamination import Decontaminator, Problem
from dare.data.repeats import normal_form
from dare_verify.math import check_golds

LONGEST = 1500
"""Characters of a problem; longer ones are tables and stories that a small model cannot use."""
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, sift, shuffle, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sources", type=paths, required=True, metavar="FILE,...")
    parser.add_argument("--solutions", type=paths, default=[], metavar="FILE,...")
    parser.add_argument("--leave-out", type=paths, default=[], metavar="FILE,...")
    parser.add_argument("--only-outside", type=paths, metavar="FILE,...", help="mixtures")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if not options.leave_out and not options.only_outside:
        parser.error("give --leave-out, the evaluation sets, or --only-outside, a mixture")
    if options.only_outside:
        print(json.dumps(write_outside(options.sources, options.only_outside, options.out)))
        return
    evaluated = problems(options.leave_out)
    worked = {
        normal_form(row["problem"]): row["solution"]
        for path in options.solutions
        for row in read_lines(path)
        if row.get("solution")
    }
    rows, dropped = mixture(
        {path.parent.name or path.stem: read_lines(path) for path in options.sources},
        evaluated,
        worked,
        options.prompts,
        options.seed,
    )
    written = write(rows, options.out)
    made = Counter(row["source"] for row in rows)
    solved = Counter(row["source"] for row in rows if row["solution"])
    figures = {"rows": made, "with_solution": solved, "dropped": dropped, "sha256": written}
    print(json.dumps(figures))


def write_outside(sources: Sequence[Path], mixtures: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write what no mixture uses; how many rows that are, and why others are not there."""
    raw = [row for path in sources for row in read_lines(path)]
    fit, dropped = sifted(raw, problems(mixtures), set(), to_train=False)
    kept = ("id", "problem", "answer", "level", "subject")
    rows = [{name: row[name] for name in kept if name in row} for row in fit]
    dropped["used"] = dropped.pop("evaluated")
    return {"rows": len(rows), "of": len(raw), "dropped": dropped, "sha256": write(rows, out)}


def problems(files: Sequence[Path]) -> list[Problem]:
    """Those of all files, to be found again."""
    return [
        Problem(path.parent.name or path.stem, str(row.get("id")), row["problem"])
        for path in files
        for row in read_lines(path)
    ]


def paths(text: str) -> list[Path]:
    """Files with commas between them."""
    return [Path(part) for part in text.split(",") if part]


def read_lines(path: Path) -> list[Row]:
    """The rows of a file of JSON lines, compressed or not."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def mixture(
    sources: dict[str, list[Row]],
    evaluated: Sequence[Problem],
    worked: dict[str, str],
    prompts: int,
    seed: int,
) -> tuple[list[Row], dict[str, dict[str, int]]]:
    """As many rows of each source, in a random order, and how many were dropped for what."""
    rng = np.random.default_rng(seed)
    wanted = np.full(len(sources), prompts // len(sources))
    wanted[: prompts % len(sources)] += 1
    kept: list[Row] = []
    seen: set[str] = set()
    dropped: dict[str, dict[str, int]] = {}
    for (source, raw), count in zip(sources.items(), wanted.tolist(), strict=True):
        fit, dropped[source] = sifted(raw, evaluated, seen)
        if len(fit) < count:
            raise SystemExit(f"{source} has {len(fit)} usable problems, {count} are asked for")
        for place in np.sort(rng.permutation(len(fit))[:count]).tolist():
            row, key = fit[place], normal_form(fit[place]["problem"])
            seen.add(key)
            solution = row.get("solution") or worked.get(key)
            named = {"id": str(row.get("id", key)), "source": source, "solution": solution}
            kept.append({"problem": row["problem"], "answer": str(row["answer"]), **named})
    order = rng.permutation(len(kept)).tolist()
    return [kept[place] for place in order], dropped


def sifted(
    rows: Sequence[Row], evaluated: Sequence[Problem], taken: set[str], *, to_train: bool = True
) -> tuple[list[Row], dict[str, int]]:
    """Rows of use that are not among `evaluated`, and how many were not for which reason."""
    dropped: Counter[str] = Counter()
    fit: list[Row] = []
    seen = set(taken)
    for row in rows:
        why = unfit(row, seen, to_train=to_train)
        if why:
            dropped[why] += 1
        else:
            seen.add(normal_form(row["problem"]))
            fit.append(row)
    matches = Decontaminator(evaluated).match([row["problem"] for row in fit])
    bad = {place for place, _ in check_golds([row["answer"] for row in fit])}
    found = {place for place, match in enumerate(matches) if match}
    dropped["evaluated"], dropped["answer cannot be verified"] = len(found), len(bad - found)
    return [row for place, row in enumerate(fit) if place not in found | bad], dict(dropped)


def unfit(row: Row, seen: set[str], *, to_train: bool) -> str | None:
    """Why a row alone is no use, None where it is. Figures and long ones can be evaluated on."""
    problem = row["problem"]
    if not str(row.get("answer") or "").strip():
        return "no answer"
    if to_train and "[asy]" in problem:
        return "figure"
    if to_train and len(problem) > LONGEST:
        return "long"
    return "repeat" if normal_form(problem) in seen else None


def write(rows: Sequence[Row], path: Path) -> str:
    """Write JSON lines, compressed where the name ends so; the digest of the text."""
    text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:  # no date: same bytes
            file.write(text)
        path.write_bytes(packed.getvalue())
    else:
        path.write_bytes(text)
    return hashlib.sha256(text).hexdigest()


if __name__ == "__main__":
    main()
