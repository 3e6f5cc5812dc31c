"""A head fitted to pass rates, and how well it predicts prompts that it did not see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

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
from dare.teacher.recalibrate import Line, best_line, expected_error, recalibrated


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
