"""How well the DOTS teacher predicts pass rates of prompts that it did not see.

    python benchmarks/teacher.py --rates FILE.jsonl[.gz] --embedder MODEL [--embeddings FILE.npy]
        [--curves FILE.jsonl[.gz]] [--prompts 8000] [--seeds 3] [--out FILE.json]

FILE has `problem` (or `prompt`) and `pass_rate` of one policy. Some prompts are held out; the head
attends to 256 references of the others. With --curves, whose rows have `acc_by_epoch` (the success
rate of a group of rollouts at each pass over the data of another policy's training run), heads are
trained on FILE without those prompts and tested on that run: as they are, with references of the
new policy only. --embeddings has the rows of FILE, then those of --curves, as --cache writes them.
Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.data import read_rows
from dare.errors import InvalidInput
from dare.teacher.embedder import embed
from dare.teacher.fit import FitSettings, choose_anchors
from dare.teacher.fitting import evaluate, fit_teacher
from dare.teacher.head import TeacherHead
from dare.teacher.rates import Columns, read_rates

PASSES = (0, 10, 20, 30, 40)
WINDOW = 3  # passes averaged into one rate: 24 rollouts of a policy that hardly changed
GROUP = 8
FIGURES = (
    "bce",
    "mae",
    "pearson",
    "calibration_error",
    "slope",
    "slope_error",
    "shift",
    "shift_error",
)


def read_curves(path: str) -> tuple[list[str], Array]:
    """Prompts and, for each of PASSES, the success rate of the WINDOW passes from it on."""
    rows = [row for row in read_rows(path) if len(row["acc_by_epoch"]) >= PASSES[-1] + WINDOW]
    rates = [[np.mean(row["acc_by_epoch"][p : p + WINDOW]) for p in PASSES] for row in rows]
    return [row["problem"] for row in rows], np.array(rates)


def mean_and_spread(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Each figure over the seeds: mean, lowest and highest."""
    found: dict[str, Any] = {}
    for name in runs[0]["errors"]:
        found[name] = {}
        for key in FIGURES:
            values = [run["errors"][name][key] for run in runs]
            known = [value for value in values if value is not None]
            spread = [float(np.mean(known)), min(known), max(known)] if known else None
            found[name][key] = [round(value, 4) for value in spread] if spread else None
    return found


def transfer(head: TeacherHead, rows_PH: Array, rates_PT: Array, settings: FitSettings) -> Any:
    """The head on another policy's run: references from it, every other prompt predicted."""
    points = rates_PT.shape[1]
    rows, rate = np.tile(rows_PH, (points, 1)), rates_PT.T.ravel()
    group = np.repeat(np.arange(points), len(rows_PH))
    rng = np.random.default_rng([settings.seed, 3])
    anchors = choose_anchors(group, np.ones(len(rows), bool), settings.references, rng)
    held = np.ones(len(rows), bool)
    held[np.concatenate(anchors)] = False
    untrained = TeacherHead.init(head.width, settings.hidden, settings.seed, settings.tau)
    trials = np.full(len(rows), float(WINDOW * GROUP))
    return evaluate(head, untrained, rows, rate, trials, group, held, anchors)


def main() -> None:
    """Read, embed, fit and test; see the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rates", required=True)
    parser.add_argument("--curves")
    parser.add_argument("--embedder", help="a model by path or name")
    parser.add_argument("--embeddings", help="its embeddings, made before")
    parser.add_argument("--cache", help="write the embeddings here")
    parser.add_argument("--prompts", type=int, default=8000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=10.0)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--out")
    args = parser.parse_args()

    first = next(iter(read_rows(args.rates)))
    column = "problem" if "problem" in first else "prompt"
    found = read_rates([args.rates], Columns(prompt=column, trials="num_rollouts"))
    chosen = np.sort(np.random.default_rng(0).permutation(len(found))[: args.prompts])
    found = found.take(chosen)
    others, curves = read_curves(args.curves) if args.curves else ([], np.empty((0, 0)))
    if args.embeddings:
        rows = np.load(args.embeddings)
        if len(rows) != len(found) + len(others):
            fix = f"must have {len(found) + len(others)} rows; write them with --cache"
            raise InvalidInput("--embeddings", rows.shape, fix)
        name = Path(args.embedder or args.embeddings).name
    else:
        made = embed([*found.prompts, *others], args.embedder or "pocket")
        rows, name = made.rows_PH, made.embedder
        if args.cache:
            np.save(args.cache, rows)

    normal = {" ".join(text.split()) for text in others}
    alone = np.array([" ".join(text.split()) not in normal for text in found.prompts])
    runs, moved = [], []
    for seed in range(args.seeds):
        settings = FitSettings(
            steps=args.steps,
            hidden=args.hidden,
            lr=args.lr,
            weight_decay=args.weight_decay,
            dropout=args.dropout,
            seed=seed,
        )
        keep = np.flatnonzero(alone)  # none of the curves' prompts, whatever their wording's spaces
        part = found.take(keep)
        head, about = fit_teacher(rows[keep], part.rate_P, part.trials_P, part.policy_P, settings)
        runs.append(about)
        if others:
            moved.append(transfer(head, rows[len(found) :], curves, settings))
    result: dict[str, Any] = {
        "rates": Path(args.rates).name,
        "embedder": name,
        "width": int(rows.shape[1]),
        "prompts": int(alone.sum()),
        "held_out_rows": runs[0]["held_out_rows"],
        "seeds": args.seeds,
        "settings": runs[0]["settings"],
        "figures": "mean, lowest and highest over the seeds",
        "held_out": mean_and_spread(runs),
        "kept_steps": [run["kept_step"] for run in runs],
        "calibration": runs[0]["calibration"],
    }
    if moved:
        result["transfer"] = {
            "curves": Path(args.curves).name,
            "prompts": len(others),
            "passes": list(PASSES),
            "window": WINDOW,
            "predicted_rows": moved[0]["held_out_rows"],
            "held_out": mean_and_spread(moved),
            "calibration": moved[0]["calibration"],
        }
    if args.out:
        temporary = Path(args.out + ".tmp")
        temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, args.out)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
