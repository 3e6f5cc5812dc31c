"""Training of the DOTS head: AdamW on the binary cross-entropy of observed success rates.

Each step takes references and queries from one policy snapshot and never lets a prompt be both:
it would attend to its own label. The parameters with the lowest validation error are kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dare.curriculum.teacher_head import Array, TeacherHead, check_success, ensure

Bools = npt.NDArray[np.bool_]
_EVAL_ROWS = 4096  # rows scored per side and FitPoint, so that scoring stays cheaper than fitting
_POINTS = 20


@dataclass(frozen=True)
class FitPoint:
    """Errors after `step` updates; validation prompts are never references nor training queries."""

    step: int
    train_bce: float
    train_mae: float
    validation_bce: float
    validation_mae: float


@dataclass(frozen=True)
class Fit:
    """About twenty FitPoints and the step whose parameters the head now has."""

    history: list[FitPoint]
    best_step: int

    @property
    def best(self) -> FitPoint:
        """The point of those parameters."""
        return next(point for point in self.history if point.step == self.best_step)


def fit_head(
    head: TeacherHead,
    embeddings_PH: Array,
    success_P: npt.ArrayLike,
    *,
    steps: int,
    batch: int = 256,
    references: int = 256,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    dropout: float = 0.0,
    seed: int = 0,
    groups: npt.ArrayLike | None = None,
    validation: float = 0.1,
    progress: Callable[[int, float], Any] | None = None,
) -> Fit:
    """Train with AdamW (linear warm-up and decay, as in DOTS) and keep the best parameters.

    `groups` labels the policy snapshot of each row. Rows with equal embeddings are one prompt and
    stay on one side of the validation split, or a prompt seen under one snapshot would leak into
    another. `dropout` is the share of each embedding that a step does not see. `progress` hears the
    step and its loss.
    """
    for name, count in (("steps", steps), ("batch", batch), ("references", references)):
        ensure(count >= 1, f"{name}={count}: use at least 1")
    ensure(0 < lr < math.inf, f"lr={lr}: use a finite rate above 0")
    fix = "use a finite decay of at least 0"
    ensure(0 <= weight_decay < math.inf, f"weight_decay={weight_decay}: {fix}")
    ensure(0 <= dropout < 1, f"dropout={dropout}: use a share of at least 0 and below 1")
    ensure(0 < validation < 1, f"validation={validation}: use a share between 0 and 1")
    rows = head.check_embeddings("embeddings_PH", embeddings_PH)
    success = check_success("success_P", success_P, len(rows))
    group_P = group_index(groups, len(rows))
    setup = np.random.default_rng([seed, 0])  # its own stream: scoring cannot shift training
    kept_P = hold_out(rows, validation, setup)
    anchors = choose_anchors(group_P, ~kept_P, references, setup)
    free_P = ~kept_P
    free_P[np.concatenate(anchors)] = False  # a reference would be scored against itself
    sides = [setup.permutation(np.flatnonzero(s))[:_EVAL_ROWS] for s in (free_P, kept_P)]

    def score(step: int) -> FitPoint:
        errors: list[float] = []
        for side in sides:
            p = predict_rows(head, rows, success, group_P, anchors, side)
            errors += [bce(p, success[side]), float(np.mean(np.abs(p - success[side])))]
        return FitPoint(step, *errors)

    pools = [np.flatnonzero((group_P == g) & ~kept_P) for g in range(len(anchors))]
    history, rng, train_P = [score(0)], np.random.default_rng([seed, 1]), np.concatenate(pools)
    best, kept = history[0], head.state_dict()
    adam, noise = AdamW(head, weight_decay), np.random.default_rng([seed, 2])
    warmup = max(1, min(100, steps // 10))
    for step in range(1, steps + 1):
        pool = pools[group_P[rng.choice(train_P)]]  # a group's chance is its share of rows
        drawn = rng.choice(pool, min(len(pool), references + batch), replace=False)
        ref, query = drawn[:references], drawn[references:]
        near, asked = (_thinned(rows[part], dropout, noise) for part in (ref, query))
        rate = lr * min(step / warmup, (steps - step + 1) / (steps - warmup + 1))
        with np.errstate(over="ignore", invalid="ignore"):  # a loss that is no number tells it all
            loss, grads = head.loss_and_grad(asked, success[query], near, success[ref])
            ensure(math.isfinite(loss), f"lr={lr}: loss became {loss} at step {step}; lower lr")
            adam.step(grads, rate)
        if progress is not None:
            progress(step, loss)
        if step % max(1, steps // _POINTS) == 0 or step == steps:
            with np.errstate(over="ignore", invalid="ignore"):
                history.append(score(step))
            if history[-1].validation_bce < best.validation_bce:
                best, kept = history[-1], head.state_dict()
    head.load_state_dict(kept)
    return Fit(history, best.step)


def group_index(groups: npt.ArrayLike | None, count: int) -> npt.NDArray[np.int64]:
    """The label of each row as a number from 0; all one group where there are no labels."""
    labels = np.zeros(count, np.int64) if groups is None else np.asarray(groups)
    fix = f"pass one label per row, shape {(count,)}"
    ensure(labels.shape == (count,), f"groups has shape {labels.shape}: {fix}")
    return np.asarray(np.unique(labels, return_inverse=True)[1], dtype=np.int64)


def hold_out(rows_PH: Array, share: float, rng: np.random.Generator) -> Bools:
    """Mask of a random share of the distinct embeddings, whatever the order of the rows."""
    digests = [hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest() for row in rows_PH]
    names, prompt_P = np.unique(digests, return_inverse=True)
    held = rng.permutation(len(names)) < max(1, round(share * len(names)))
    return np.asarray(held[prompt_P])


def choose_anchors(
    group_P: npt.NDArray[np.int64], usable_P: Bools, references: int, rng: np.random.Generator
) -> list[npt.NDArray[np.int64]]:
    """Rows of the references of each group; every group must leave a row for a query."""
    pools = [np.flatnonzero((group_P == g) & usable_P) for g in range(int(group_P.max()) + 1)]
    short = min(len(pool) for pool in pools)
    fix = f"lower it below {short}, the training rows of the smallest group, or merge groups"
    ensure(references < short, f"references={references}: {fix}")
    return [rng.choice(pool, references, replace=False) for pool in pools]


def predict_rows(
    head: TeacherHead,
    rows_PH: Array,
    success_P: Array,
    group_P: npt.NDArray[np.int64],
    anchors: list[npt.NDArray[np.int64]],
    wanted: npt.NDArray[np.int64],
    **options: Any,
) -> Array:
    """Predicted success of the wanted rows, each from the references of its own group."""
    predicted = np.empty(len(wanted))
    for g, anchor in enumerate(anchors):
        mine = group_P[wanted] == g
        near, rates = rows_PH[anchor], success_P[anchor]
        predicted[mine] = head.predict(rows_PH[wanted[mine]], near, rates, **options)
    return predicted


def bce(predicted: Array, success: Array) -> float:
    """Mean binary cross-entropy of predicted against observed success rates."""
    safe = np.clip(predicted, 1e-12, 1 - 1e-12)
    return -float(np.mean(success * np.log(safe) + (1 - success) * np.log1p(-safe)))


def _thinned(rows: Array, share: float, rng: np.random.Generator) -> Array:
    """The rows with a random share of their numbers set to 0; LayerNorm sees to the scale."""
    return rows * (rng.random(rows.shape) >= share) if share else rows


class AdamW:
    """AdamW with the usual constants, on the head's own arrays; only matrices decay."""

    def __init__(self, head: TeacherHead, decay: float) -> None:
        self._params, self._count, self._decay = head.params, 0, decay
        self._first = {k: np.zeros_like(v) for k, v in head.params.items()}
        self._second = {k: np.zeros_like(v) for k, v in head.params.items()}

    def step(self, grads: dict[str, Array], rate: float) -> None:
        """One update in place."""
        self._count += 1
        for k, grad in grads.items():
            self._first[k] += 0.1 * (grad - self._first[k])
            self._second[k] += 0.001 * (grad * grad - self._second[k])
            if grad.ndim == 2:
                self._params[k] -= rate * self._decay * self._params[k]
            spread = np.sqrt(self._second[k] / (1 - 0.999**self._count)) + 1e-8
            self._params[k] -= rate / (1 - 0.9**self._count) * self._first[k] / spread
