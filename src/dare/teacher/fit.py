"""Training of the DOTS head: AdamW on the binary cross-entropy of observed success rates.

Each step takes references and queries from one policy snapshot and never lets a prompt be both:
it would attend to its own label. The parameters with the lowest validation error are kept.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.lr_scheduler import LambdaLR

from dare.curriculum.arrays import Array
from dare.errors import require
from dare.teacher.head import TeacherHead, check_success

Bools = npt.NDArray[np.bool_]
_EVAL_ROWS = 4096  # rows scored per side and FitPoint, so that scoring stays cheaper than fitting
_POINTS = 20


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
    """Share of each embedding that a step does not see."""
    tau: float = 1.0
    held_out: float = 0.1
    """Share of the prompts that decides which parameters are kept."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "references", "batch"):
            value = getattr(self, name)
            require(value >= 1, f"--{name}", value, "needs at least 1")
        fits = 2 <= self.hidden <= 65536  # that of DOTS is 896
        require(fits, "--hidden", self.hidden, "must be between 2 and 65536")
        fix = "must be positive and fit the head's precision"
        require(0 < self.lr < 1e30, "--lr", self.lr, fix)
        decay = self.weight_decay
        require(0 <= decay < float("inf"), "--weight-decay", decay, "must not be negative")
        require(0 <= self.dropout < 1, "--dropout", self.dropout, "must be in [0, 1)")
        require(0 < self.tau < float("inf"), "--tau", self.tau, "must be positive")
        require(0 < self.held_out < 1, "--held-out", self.held_out, "must be between 0 and 1")
        require(self.seed >= 0, "--seed", self.seed, "must not be negative")


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
    settings: FitSettings,
    groups: npt.ArrayLike | None = None,
    progress: Callable[[int, float], Any] | None = None,
) -> Fit:
    """Train with AdamW (linear warm-up and decay, as in DOTS) and keep the best parameters.

    `groups` labels the policy snapshot of each row. Rows with equal embeddings are one prompt and
    stay on one side of the validation split, or a prompt seen under one snapshot would leak into
    another. `progress` hears the step and its loss.
    """
    steps, references = settings.steps, settings.references
    rows = head.check_embeddings("embeddings_PH", embeddings_PH)
    success = check_success("success_P", success_P, len(rows))
    group_P = group_index(groups, len(rows))
    setup = np.random.default_rng([settings.seed, 0])  # its own: scoring cannot shift training
    kept_P = hold_out(rows, settings.held_out, setup)
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
    history, train_P = [score(0)], np.concatenate(pools)
    best, kept = history[0], copy.deepcopy(head.state_dict())
    rng, noise = (np.random.default_rng([settings.seed, stream]) for stream in (1, 2))
    adam = optimiser(head, settings)
    warmup = max(1, min(100, steps // 10))
    decay = steps - warmup + 1
    rate = LambdaLR(adam, lambda done: min((done + 1) / warmup, (steps - done) / decay))
    for step in range(1, steps + 1):
        pool = pools[group_P[rng.choice(train_P)]]  # a group's chance is its share of rows
        drawn = rng.choice(pool, min(len(pool), references + settings.batch), replace=False)
        ref, query = drawn[:references], drawn[references:]
        near, asked = (_thinned(rows[part], settings.dropout, noise) for part in (ref, query))
        loss = head.loss(asked, success[query], near, success[ref])
        fix = f"the loss became {loss.item()} at step {step}; lower it"
        require(math.isfinite(loss.item()), "--lr", settings.lr, fix)
        adam.zero_grad()
        loss.backward()
        adam.step()
        rate.step()
        if progress is not None:
            progress(step, loss.item())
        if step % max(1, steps // _POINTS) == 0 or step == steps:
            history.append(score(step))
            if history[-1].validation_bce < best.validation_bce:
                best, kept = history[-1], copy.deepcopy(head.state_dict())
    head.load_state_dict(kept)
    return Fit(history, best.step)


def optimiser(head: TeacherHead, settings: FitSettings) -> torch.optim.AdamW:
    """AdamW under which only matrices decay."""
    groups = [
        {"params": [p for p in head.parameters() if (p.ndim == 2) is matrix], "weight_decay": decay}
        for matrix, decay in ((True, settings.weight_decay), (False, 0.0))
    ]
    return torch.optim.AdamW(groups, lr=settings.lr)


def group_index(groups: npt.ArrayLike | None, count: int) -> npt.NDArray[np.int64]:
    """The label of each row as a number from 0; all one group where there are no labels."""
    labels = np.zeros(count, np.int64) if groups is None else np.asarray(groups)
    fix = f"pass one label per row, shape {(count,)}"
    require(labels.shape == (count,), "groups has shape", labels.shape, fix)
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
    require(references < short, "--references", references, fix)
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
