"""A head fitted to pass rates, how well it predicts prompts that it did not see, and that shown.

Is a predicted rate off by a temperature and a bias? The best ones say what they would gain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from dare.curriculum.arrays import Array
from dare.evaluation.calibration import calibration
from dare.teacher.fit import (
    FitSettings,
    bce,
    choose_anchors,
    fit_head,
    group_index,
    hold_out,
    predict_rows,
)
from dare.teacher.head import TeacherHead


def fit_teacher(
    rows_PH: Array,
    rate_P: Array,
    trials_P: Array,
    policy_P: Array,
    settings: FitSettings,
    progress: Callable[[int, float], Any] | None = None,
) -> tuple[TeacherHead, dict[str, Any]]:
    """The head, and its figures on the held-out prompts.

    A share of the prompts takes no part in training, under no policy. A part of the others, as
    large, decides which of the parameters along the way are kept.
    """
    group_P = group_index(policy_P, len(rows_PH))
    rng = np.random.default_rng([settings.seed, 2])
    held_P = hold_out(rows_PH, settings.held_out, rng)
    rest = np.flatnonzero(~held_P)
    head, untrained = (
        TeacherHead.init(rows_PH.shape[1], settings.hidden, settings.seed, settings.tau)
        for _ in range(2)
    )
    fit = fit_head(head, rows_PH[rest], rate_P[rest], settings, group_P[rest], progress)
    anchors = choose_anchors(group_P, ~held_P, settings.references, rng)
    figures = evaluate(head, untrained, rows_PH, rate_P, trials_P, group_P, held_P, anchors)
    about = {
        "prompts": len(np.unique(rows_PH, axis=0)),
        "rows": len(rows_PH),
        "policies": sorted({str(label) for label in policy_P}),
        "settings": asdict(settings),
        "kept_step": fit.best_step,
        "history": [asdict(point) for point in fit.history],
        **figures,
    }
    return head, about


def evaluate(
    head: TeacherHead,
    untrained: TeacherHead,
    rows_PH: Array,
    rate_P: Array,
    trials_P: Array,
    group_P: Array,
    held_P: Array,
    anchors: list[Array],
) -> dict[str, Any]:
    """Errors on the held-out rows beside two simple predictions, and the calibration.

    Every prediction of a row sees the same references of its own policy, none of them held out.
    """
    wanted = np.flatnonzero(held_P)
    rate, trials = rate_P[wanted], trials_P[wanted]

    def by(which: TeacherHead, **options: Any) -> Array:
        return predict_rows(which, rows_PH, rate_P, group_P, anchors, wanted, **options)

    means = np.array([rate_P[anchor].mean() for anchor in anchors])
    found = {
        "head": by(head),
        "attention alone": by(head, calibrated=False),
        "untrained head": by(untrained),
        "mean of references": means[group_P[wanted]],
    }
    found["recalibrated"] = recalibrated(found["head"], rate)
    errors = {name: _errors(predicted, rate, trials) for name, predicted in found.items()}
    return {
        "held_out_rows": len(wanted),
        "held_out_rate": float(rate.mean()),
        "errors": errors,
        # Of the success rate, in bins of the predicted one.
        "calibration": calibration(found["head"], rate, trials),
    }


def _errors(predicted: Array, rate: Array, trials: Array) -> dict[str, float | None]:
    line = best_line(predicted, rate)
    moves = min(np.std(predicted), np.std(rate)) > 1e-9
    return {
        "bce": bce(predicted, rate),
        "mae": float(np.abs(predicted - rate).mean()),
        "pearson": float(np.corrcoef(predicted, rate)[0, 1]) if moves else None,
        "calibration_error": expected_error(predicted, rate, trials),
        **(line._asdict() if line is not None else dict.fromkeys(Line._fields)),
    }


class Line(NamedTuple):
    """a and b of sigmoid(a logit(p) + b), 1 and 0 where calibrated, and their standard errors."""

    slope: float
    shift: float
    slope_error: float
    shift_error: float


def best_line(predicted: Array, rate: Array) -> Line | None:
    """The pair with the least cross-entropy, by Newton's method.

    None where the predictions are all alike or the rates separate perfectly, so that there is no
    such pair. The errors take the rates as they scatter (sandwich), not as single coin flips.
    """
    x = _logit(predicted)
    if np.std(x) < 1e-9:
        return None
    columns = np.stack([x, np.ones_like(x)])
    found = np.array([1.0, 0.0])
    for _ in range(50):
        p = _sigmoid(found @ columns)
        gradient = columns @ (p - rate)
        curvature = (columns * (p * (1 - p))) @ columns.T + 1e-9 * np.eye(2)
        move = np.linalg.solve(curvature, gradient)
        found = found - move * min(1.0, 2.0 / float(np.abs(move).max() + 1e-12))
        if float(np.abs(move).max()) < 1e-9:
            half = np.linalg.solve(curvature, columns * (p - rate))
            errors = np.sqrt((half * half).sum(axis=1))
            return Line(*(float(value) for value in (*found, *errors)))
    return None


def recalibrated(predicted: Array, rate: Array) -> Array:
    """The predictions after the best slope and shift of the other half of the rows."""
    result = predicted.copy()
    halves = [np.arange(start, len(rate), 2) for start in (0, 1)]
    for mine, other in (halves, halves[::-1]):
        line = best_line(predicted[other], rate[other])
        if line is not None:
            result[mine] = _sigmoid(line.slope * _logit(predicted[mine]) + line.shift)
    return result


def expected_error(predicted: Array, rate: Array, trials: Array) -> float:
    """Mean gap between predicted and observed rate over bins, weighted by their prompts (ECE)."""
    lines = calibration(predicted, rate, trials)
    total = sum(line["prompts"] for line in lines)
    gaps = (line["prompts"] * abs(line["predicted"] - line["realised"]) for line in lines)
    return float(sum(gaps) / total)


def _logit(p: Array) -> Array:
    safe = np.clip(p, 1e-9, 1 - 1e-9)
    found: Array = np.log(safe) - np.log1p(-safe)
    return found


def _sigmoid(x: Array) -> Array:
    found: Array = 0.5 * (1 + np.tanh(0.5 * x))
    return found


def show(about: dict[str, Any]) -> None:
    """Errors on held-out prompts beside simple predictions, and the calibration of the head."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    def span(value: float | None, error: float | None) -> str:
        return "-" if value is None else f"{value:.2f} ± {error:.2f}"

    console = Console(highlight=False)
    console.print(
        f"{about['rows']} rates of {about['prompts']} prompts and {len(about['policies'])} "
        f"policies; held out: {about['held_out_rows']} rates, mean {about['held_out_rate']:.3f}; "
        f"kept the parameters of step {about['kept_step']}"
    )
    names = ("bce", "mae", "pearson", "calibration_error")
    titles = ("BCE", "MAE", "Pearson", "ECE", "slope", "shift")
    table = Table("held-out prompts", *titles, box=None)
    for name, line in sorted(about["errors"].items(), key=lambda item: float(item[1]["bce"])):
        moves = (span(line[key], line[f"{key}_error"]) for key in ("slope", "shift"))
        table.add_row(name, *(number(line[key]) for key in names), *moves)
    console.print(table)
    console.print(
        "attention alone: before temperature and bias; recalibrated: after the best slope and shift"
        " of the other half of the rows; ECE: mean gap between predicted and observed over bins\n"
    )
    bins = Table("predicted success", "rates", "predicted", "observed", "95 %", box=None)
    for line in about["calibration"]:
        bins.add_row(
            f"{line['from']:.1f} - {line['to']:.1f}",
            str(line["prompts"]),
            number(line["predicted"]),
            number(line["realised"]),
            f"{line['low']:.3f} - {line['high']:.3f}",
        )
    console.print(bins)
