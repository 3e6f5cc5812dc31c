"""Which buffered rollouts are worth rescoring under a token budget (METHOD 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, compact
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.rollouts import RolloutBatch


@dataclass(frozen=True)
class ScoreRequest:
    """Buffered plain rollouts whose total log-prob under the current policy is wanted."""

    uid_R: Array
    rollouts: RolloutBatch


Scorer = Callable[[ScoreRequest], Any]
"""Returns one total log-prob a rollout, of the *sampling* distribution; -inf outside a nucleus."""


def choose_stale(
    buffer: RolloutBuffer, chance: Callable[[Array], Array], step: int, token_budget: int
) -> ScoreRequest:
    """Rollouts of the prompts that are most stale and most likely to be drawn, within the budget.

    A prompt is rescored whole, since half-aligned weights mislead; rollouts without behaviour
    log-probs have no ratio and are left out. Its worth is its chance to be
    drawn (`chance(rows)`) times the steps since it was last scored; worth per token decides.
    """
    stale = buffer["scored_step"] < step
    wanted = np.flatnonzero(buffer.plain & buffer.has_behaviour & stale)
    if not len(wanted) or token_budget <= 0:
        return _request(buffer, wanted[:0])
    prompts, inverse = compact(buffer["prompt"][wanted])
    tokens = np.bincount(inverse, weights=buffer["length"][wanted])
    age = np.bincount(inverse, weights=step - buffer["scored_step"][wanted]) / np.bincount(inverse)
    worth = chance(prompts) * age / np.maximum(tokens, 1.0)
    taken = np.zeros(len(prompts), dtype=bool)
    left, order = float(token_budget), np.argsort(-worth, kind="stable")
    while True:  # each round ends at a prompt too long for what is left; the next goes past it
        order = order[~taken[order] & (tokens[order] <= left)]
        fits = order[np.cumsum(tokens[order]) <= left]
        if not len(fits):
            return _request(buffer, wanted[taken[inverse]])
        taken[fits] = True
        left -= tokens[fits].sum()


def _request(buffer: RolloutBuffer, index: Array) -> ScoreRequest:
    return ScoreRequest(buffer["uid"][index], buffer.batch(index))
