"""What an update trains on, as micro-batches, and what its own pass says of the rollouts.

The pass that computes the loss computes the log-probs of every rollout it trains on, under the
policy that is about to change. In the first update of a step they are the behaviour log-probs of
rollouts sampled in it, and in every update today's score of replayed ones: no other pass is made
for either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from dare.curriculum import Curriculum, TrainBatch
from dare.curriculum.arrays import Array
from dare.curriculum.rollouts import Conditioning
from dare.policy.batching import IntArray
from dare.policy.policy import Policy
from dare.training.micro import micro_batch, shares


def trained_rows(
    batch: TrainBatch, weight_R: Array, beta: float, replays: bool = False
) -> IntArray:
    """Rows with a gradient. Without a KL term a rollout of advantage 0 has none: it is not read.

    In a group with others that have one it is, if groups are replayed: for that all rollouts of a
    group need their log-probs.
    """
    useful = weight_R > 0
    if beta == 0.0:
        useful = useful & (batch.advantage_R != 0)
    if replays:
        useful = useful | ((batch.weight_R > 0) & batch.varied_N[batch.group_R])
    return np.flatnonzero(useful)


def micro_batches(
    batch: TrainBatch,
    prompts: list[IntArray],
    rows: IntArray,
    policy: Policy,
    weight_R: Array,
    *,
    count: int,
    rank: int,
    processes: int,
    updates: int = 1,
    all_of_them: bool = False,
    flat: Mapping[str, Array] | None = None,
) -> list[dict[str, Any]]:
    """This process's share of the rows, with about as many tokens in each micro-batch.

    The rows are one of `updates` mini-batches. At most `count` micro-batches: each is as large as
    one of all rollouts in `count` parts an update, and rollouts without a gradient are not read,
    so that fewer will do. `all_of_them` is for engines that count backward passes themselves;
    `flat` has more values of every token, by name.
    """
    layout = policy.layout
    every = np.array([len(prompt) for prompt in prompts], int) + batch.rollouts.length_R
    lengths = every[rows]
    busy = float(lengths.sum()) / max(1, int(every.sum()))
    needed = count if all_of_them else min(count, max(1, math.ceil(count * updates * busy)))
    hands = shares(lengths, processes, needed, packed=layout.packed)
    result = []
    for part in hands[rank]:
        if len(part):
            result.append(micro_batch(batch, prompts, rows[part], layout, weight_R, flat))
            continue
        # Every process runs the same number of passes: an empty share reads one row in vain.
        shortest = np.array([int(np.argmin(batch.rollouts.length_R))])
        dummy = micro_batch(batch, prompts, shortest, layout, 0.0 * weight_R, flat)
        dummy["rows"] = shortest[:0]
        result.append(dummy)
    return result


class OwnPass:
    """Log-probs that the passes of a step's updates gave, kept until the curriculum is told."""

    def __init__(self, batch: TrainBatch) -> None:
        self._batch = batch
        late = ~batch.rollouts.has_behaviour_R
        plain = batch.rollouts.conditioning_R == Conditioning.PLAIN
        # Helped rollouts are scored under their help before the update: what the update says of
        # them under the plain prompt is another number.
        self._behaviour = batch.fresh_R & late & (batch.uid_R >= 0)
        self._score = ~batch.fresh_R & plain
        self._found: dict[int, tuple[Array, float]] = {}
        self._updated = False

    def updated(self) -> None:
        """The weights have changed: from now on no pass says anything of the behaviour."""
        self._updated = True

    def asks(self, rows: IntArray) -> bool:
        """Whether a pass over these rows has something to tell."""
        return not self._updated or bool(self._score[rows].any())

    def note(self, rows: IntArray, logprob: Tensor, kept: Tensor | None) -> None:
        """Log-probs [N] of these rows' tokens, one behind another, and [2, N] of the nucleus: the
        log of what it keeps at each, and whether the token is outside of it."""
        if not len(rows):
            return
        tokens = logprob.detach().float().cpu().numpy()
        exact, outside = tokens, np.zeros(len(tokens), bool)
        if kept is not None:
            mass, left_out = kept.float().cpu().numpy()
            exact, outside = tokens - mass, left_out > 0
        ends = np.cumsum(self._batch.rollouts.length_R[rows])
        for row, end in zip(rows.tolist(), ends.tolist(), strict=True):
            part = slice(end - int(self._batch.rollouts.length_R[row]), end)
            # Rounding may leave a token above certainty; a probability is not.
            total = float(np.minimum(exact[part], 0.0).sum(dtype=np.float64))
            # What this policy drew is inside, whatever rounding says; an old one may be impossible.
            if not self._behaviour[row] and outside[part].any():
                total = -np.inf
            if self._score[row] or not self._updated:  # of scores the latest counts
                self._found[row] = tokens[part], total

    def found(self) -> dict[str, Array]:
        """What this process has found, to gather."""
        rows = sorted(self._found)
        tokens = [self._found[row][0] for row in rows]
        return {
            "row": np.array(rows, np.int64),
            "total": np.array([self._found[row][1] for row in rows]),
            "logprobs": np.concatenate([np.empty(0, np.float32), *tokens]),
        }

    def deliver(
        self, curriculum: Curriculum, step: int, everyone: Sequence[Mapping[str, Array]]
    ) -> None:
        """Tell the curriculum, on every process, what all of them `found`."""
        row, total = (np.concatenate([one[name] for one in everyone]) for name in ("row", "total"))
        tokens: list[Array] = []
        for one in everyone:
            ends = np.cumsum(self._batch.rollouts.length_R[one["row"]])
            tokens += np.split(one["logprobs"], ends)[:-1]  # the last is what is behind the end
        order, uid = np.argsort(row), self._batch.uid_R
        new = order[self._behaviour[row[order]]]
        curriculum.record_behaviour(uid[row[new]], [tokens[place] for place in new], total[new])
        old = order[self._score[row[order]]]
        curriculum.record_scores(uid[row[old]], total[old], step)
        self._found = {}
