"""A head fitted to pass rates, and how well it predicts prompts that it did not see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.teacher_fit import (
    bce,
    choose_anchors,
    fit_head,
    group_index,
    hold_out,
    predict_rows,
)
from dare.curriculum.teacher_head import TeacherHead
from dare.errors import InvalidInput, require
from dare.study.metrics import calibration
from dare.teacher.recalibrate import Line, best_line, expected_error, recalibrated


@dataclass(frozen=True)
class FitSettings:
    """How a head is built and trained."""

    steps: int = 1500
    references: int = 256
    hidden: int = 128
    batch: int = 256
    lr: float = 3e-3
    weight_decay: float = 1.0
    dropout: float = 0.0
    tau: float = 1.0
    held_out: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "references", "batch"):
            value = getattr(self, name)
            require(value >= 1, f"--{name}", value, "needs at least 1")
        require(self.hidden >= 2, "--hidden", self.hidden, "needs at least 2")
        require(0 < self.lr < float("inf"), "--lr", self.lr, "must be positive")
        decay = self.weight_decay
        require(0 <= decay < float("inf"), "--weight-decay", decay, "must not be negative")
        require(0 <= self.dropout < 1, "--dropout", self.dropout, "must be in [0, 1)")
        require(0 < self.tau < float("inf"), "--tau", self.tau, "must be positive")
        require(0 < self.held_out < 1, "--held-out", self.held_out, "must be between 0 and 1")
        require(self.seed >= 0, "--seed", self.seed, "must not be negative")


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
    try:
        fit = fit_head(
            head,
            rows_PH[rest],
            rate_P[rest],
            steps=settings.steps,
            batch=settings.batch,
            references=settings.references,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            dropout=settings.dropout,
            seed=settings.seed,
            groups=group_P[rest],
            validation=settings.held_out,
            progress=progress,
        )
    except InvalidInput:
        raise
    except ValueError as error:  # the head's own words name the setting: "references=256: ..."
        name, _, fix = str(error).partition(": ")
        field, _, value = name.partition("=")
        raise InvalidInput(f"--{field.replace('_', '-')}", value, fix) from None
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
