"""RolloutBuffer: ragged columns, first in first out (METHOD 2); what to rescore (METHOD 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, compact, offsets_of, rank_from_end, to_numpy
from dare.curriculum.rollouts import Conditioning, RolloutBatch, behaviour_of
from dare.errors import InvalidInput, require

_COLUMNS: dict[str, type[np.generic]] = {
    "uid": np.int64,  # never reused; scores come back under it
    "prompt": np.int64,
    "group": np.int64,
    "group_size": np.int32,  # when it was whole, so that a torn group is known as such
    "step": np.int64,
    "replayed": np.int32,  # times that the group was trained on in a later step
    "reward": np.float32,
    "success": np.float32,  # what came of it, for estimates; NaN: nobody can tell
    "behaviour": np.float64,  # total log-prob under the distribution sampled from; NaN: unknown
    "current": np.float64,  # the same under the policy of `scored_step`; -inf is legal
    "scored_step": np.int64,
    "conditioning": np.uint8,
    "finish": np.uint8,
    "length": np.int64,
}


class RolloutBuffer:
    """At most `rollouts_per_prompt` (K) rollouts of a prompt and `groups` (C) groups in all.

    K counts plain and helped rollouts (think-longer, hinted) separately: helped ones cannot push
    out the plain ones, which alone feed estimates and hints.

    Rollout columns are kept in the order of arrival. Each rollout has its tokens and log-probs in
    arrays of its own, which leave with it.
    """

    def __init__(self, rollouts_per_prompt: int, groups: int) -> None:
        k, c = rollouts_per_prompt, groups
        require(k >= 2, "buffer.rollouts_per_prompt", k, "K must be at least 2")
        require(c >= 1, "buffer.groups", c, "C must be at least 1")
        self.rollouts_per_prompt, self.groups = k, c
        self._columns: dict[str, Array] = {n: np.empty(0, t) for n, t in _COLUMNS.items()}
        self._texts: dict[int, tuple[Array, Array]] = {}  # tokens and log-probs by uid
        self._next = {"uid": 0, "group": 0}

    def __len__(self) -> int:
        return len(self._columns["uid"])

    def __getitem__(self, column: str) -> Array:
        """A column over the held rollouts, oldest first (a read-only view)."""
        view = self._columns[column].view()
        view.flags.writeable = False
        return view

    @property
    def log_ratio(self) -> Array:
        """log pi_now(o) - log pi_behaviour(o) as of the last scoring; NaN where it is unknown."""
        ratio: Array = self._columns["current"] - self._columns["behaviour"]
        return ratio

    @property
    def plain(self) -> Array:
        """True where a rollout may feed a difficulty estimate."""
        plain: Array = self._columns["conditioning"] == Conditioning.PLAIN
        return plain & ~np.isnan(self._columns["success"])

    @property
    def has_behaviour(self) -> Array:
        """True where the log-probs under the policy that sampled are known."""
        return ~np.isnan(self["behaviour"])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held."""
        texts = sum(t.nbytes + p.nbytes for t, p in self._texts.values())
        return texts + sum(column.nbytes for column in self._columns.values())

    def uids_of(self, batch: RolloutBatch) -> Array:
        """The uids that `add` will give these rollouts; -1 for unscored ones, never stored."""
        scored = batch.scored_R
        return np.where(scored, self._next["uid"] + np.cumsum(scored) - 1, -1)

    def add(self, batch: RolloutBatch, step: int) -> dict[str, Array]:
        """Store the scored rollouts of one step; returns the columns of those that had to leave.

        The rollouts of one prompt in one call are its group. Unscored ones are never stored; those
        without behaviour log-probs wait for `record_behaviour`.
        """
        keep = np.flatnonzero(batch.scored_R)
        if not len(keep):
            return {name: column[:0] for name, column in self._columns.items()}
        prompts, inverse = compact(batch.prompt_R[keep])
        total = batch.total_logprob_R[keep]
        count = len(keep)
        new = {
            "uid": self.uids_of(batch)[keep],
            "prompt": batch.prompt_R[keep],
            "group": self._next["group"] + inverse,
            "group_size": np.bincount(inverse)[inverse],
            "step": np.full(count, step),
            "replayed": np.zeros(count),
            "reward": batch.reward_R[keep],
            "success": batch.success_R[keep],
            "behaviour": total,
            "current": total,
            "scored_step": np.full(count, step),
            "conditioning": batch.conditioning_R[keep],
            "finish": batch.finish_R[keep],
            "length": batch.length_R[keep],
        }
        tokens = batch.tokens.astype(np.int32, copy=False)
        logprobs = batch.logprobs.astype(np.float32, copy=False)
        bounds = batch.offsets.tolist()
        for uid, row in zip(new["uid"].tolist(), keep.tolist(), strict=True):
            begin, end = bounds[row], bounds[row + 1]
            # Copies: a view would hold the whole step as long as one of its rollouts.
            self._texts[uid] = tokens[begin:end].copy(), logprobs[begin:end].copy()
        self._next["uid"] += count
        self._next["group"] += len(prompts)
        self._columns = {
            name: np.concatenate([column, new[name].astype(column.dtype, copy=False)])
            for name, column in self._columns.items()
        }
        return self._evict()

    def _evict(self) -> dict[str, Array]:
        """Oldest rollouts of a prompt beyond K, then oldest groups beyond C, leave."""
        kind = 2 * self._columns["prompt"] + self.plain
        keep = rank_from_end(kind) < self.rollouts_per_prompt
        alive = np.unique(self._columns["group"][keep])
        if len(alive) > self.groups:
            keep &= self._columns["group"] >= alive[-self.groups]
        gone = {name: column[~keep] for name, column in self._columns.items()}
        if len(gone["uid"]):
            self._columns = {name: column[keep] for name, column in self._columns.items()}
            for uid in gone["uid"].tolist():
                del self._texts[uid]
        return gone

    def _gather(self, index: Array) -> tuple[Array, Array]:
        """Flat tokens and log-probs of these rollouts, in the order of `index`."""
        uids = self._columns["uid"][index].tolist()
        if not uids:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        tokens, logprobs = zip(*map(self._texts.__getitem__, uids), strict=True)
        return np.concatenate(tokens), np.concatenate(logprobs)

    def batch(self, index: Any) -> RolloutBatch:
        """These rollouts (positions in the columns) as a batch."""
        index = np.asarray(index, dtype=np.int64)
        tokens, logprobs = self._gather(index)
        return RolloutBatch(
            prompt_R=self._columns["prompt"][index],
            tokens=tokens,
            logprobs=logprobs,
            offsets=offsets_of(self._columns["length"][index]),
            total_logprob_R=self._columns["behaviour"][index],
            reward_R=self._columns["reward"][index],
            conditioning_R=self._columns["conditioning"][index],
            finish_R=self._columns["finish"][index],
            success_R=self._columns["success"][index],
        )

    def position(self, uid: Any) -> Array:
        """Positions of these uids in the columns; -1 where a rollout has left."""
        uid = np.asarray(uid, dtype=np.int64)
        held = self._columns["uid"]  # ascending: arrival order is never changed
        if not len(held):
            return np.full(len(uid), -1)
        place = np.minimum(np.searchsorted(held, uid), len(held) - 1)
        return np.where(held[place] == uid, place, -1)

    def record_behaviour(self, uid: Any, logprobs: Sequence[Any], total_logprob: Any) -> None:
        """Log-probs under the policy that sampled, found after the rollouts were added.

        Rollouts that have left are ignored, and those whose behaviour is known keep it: what a
        later policy says of them must never pass for it.
        """
        place = self.position(uid)
        for name, given in (("logprobs", logprobs), ("total_logprob", total_logprob)):
            count = len(given)
            require(count == len(place), name, count, f"must have {len(place)} entries, one a uid")
        held = np.flatnonzero(place >= 0)
        waiting = held[~self.has_behaviour[place[held]]]
        place = place[waiting]
        rows = [logprobs[row] for row in waiting.tolist()]
        totals = to_numpy(total_logprob, np.float64, "total_logprob").reshape(-1)[waiting]
        for row, one, length in zip(waiting, rows, self._columns["length"][place], strict=True):
            fix = f"uid {uid[row]} needs one log-prob per token, {length} in all"
            require(len(one) == length, "logprobs", len(one), fix)
        offsets = offsets_of(self._columns["length"][place])
        flat, total = behaviour_of(offsets, rows, totals)
        self._columns["behaviour"][place] = total
        self._columns["current"][place] = total
        ends = pairwise(offsets.tolist())
        for row, (begin, end) in zip(self._columns["uid"][place].tolist(), ends, strict=True):
            self._texts[row] = self._texts[row][0], flat[begin:end].copy()

    def rescore(self, uid: Any, total_logprob: Any, step: int) -> None:
        """Record log-probs under the policy of `step`.

        Rollouts that have left are ignored, as are those without behaviour log-probs: one side of
        a ratio says nothing.
        """
        place = self.position(uid)
        total = np.asarray(total_logprob, dtype=np.float64)
        require(len(total) == len(place), "scores", len(total), f"must have {len(place)} entries")
        wrong = np.isnan(total) | (total == np.inf)
        fix = "a total log-prob is a number or -inf (a token outside the current nucleus)"
        require(not wrong.any(), "scores", total[wrong][:1].tolist(), fix)
        held = np.flatnonzero(place >= 0)
        held = held[self.has_behaviour[place[held]]]
        self._columns["current"][place[held]] = total[held]
        self._columns["scored_step"][place[held]] = step

    def replayable(self) -> Array:
        """Ids of whole groups whose raw rewards differ (METHOD 8), oldest first.

        All of a group's behaviour log-probs must be known: without them there is no ratio.
        """
        groups, inverse = compact(self._columns["group"])
        if not len(groups):
            return groups
        reward = self._columns["reward"].astype(np.float64)
        count = np.bincount(inverse)
        known = np.bincount(inverse, weights=self.has_behaviour)
        size = np.zeros(len(groups), np.int64)
        size[inverse] = self._columns["group_size"]
        low, high = np.full(len(groups), np.inf), np.full(len(groups), -np.inf)
        np.minimum.at(low, inverse, reward)
        np.maximum.at(high, inverse, reward)
        whole = (count == size) & (known == count) & (count >= 2)
        distinct: Array = groups[whole & (high > low)]
        return distinct

    def group_facts(self, groups: Any) -> dict[str, Array]:
        """Per group the `step` it was sampled in, how often it was `replayed`, and the mean
        absolute `advantage` of its raw rewards."""
        known, inverse = compact(self._columns["group"])
        count = np.maximum(np.bincount(inverse), 1)
        reward = self._columns["reward"].astype(np.float64)
        gap = reward - (np.bincount(inverse, weights=reward) / count)[inverse]
        spread = np.sqrt(np.bincount(inverse, weights=gap**2) / count)
        distance = np.bincount(inverse, weights=np.abs(gap)) / count
        facts = {
            "step": np.zeros(len(known), np.int64),
            "replayed": np.zeros(len(known), np.int64),
            "advantage": np.divide(distance, spread, out=np.zeros(len(known)), where=spread > 0),
        }
        facts["step"][inverse] = self._columns["step"]
        facts["replayed"][inverse] = self._columns["replayed"]
        place = np.searchsorted(known, groups)
        return {name: fact[place] for name, fact in facts.items()}

    def count_replay(self, groups: Any, step: int) -> None:
        """These groups are trained on in `step`: a replay of those that an earlier one sampled."""
        again = np.isin(self._columns["group"], groups) & (self._columns["step"] < step)
        self._columns["replayed"][again] += 1

    def members(self, groups: Any) -> Array:
        """Positions of the rollouts of these groups, group after group in the order given."""
        groups = np.asarray(groups, dtype=np.int64)
        place = np.flatnonzero(np.isin(self._columns["group"], groups))
        rank = {group: order for order, group in enumerate(groups.tolist())}
        order = np.array([rank[group] for group in self._columns["group"][place].tolist()], int)
        return place[np.argsort(order, kind="stable")]

    def state_dict(self) -> dict[str, Any]:
        """Columns, live tokens and counters: arrays and JSON-able scalars only."""
        tokens, logprobs = self._gather(np.arange(len(self)))
        arrays = {name: column.copy() for name, column in self._columns.items()}
        arrays.update(tokens=tokens, logprobs=logprobs)
        return {"arrays": arrays, "next": dict(self._next)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore; a state that does not hang together is refused before anything changes."""
        arrays = state["arrays"]
        columns = {name: np.array(arrays[name], kind) for name, kind in _COLUMNS.items()}
        size, total = len(columns["uid"]), int(columns["length"].sum())
        for name, column in columns.items():
            if len(column) != size:
                raise InvalidInput(f"buffer.{name}", len(column), f"must have {size} entries")
        for name in ("tokens", "logprobs"):
            held = len(arrays[name])
            require(held == total, f"buffer.{name}", held, f"must have {total} entries")
        ends = pairwise(offsets_of(columns["length"]).tolist())
        counters = {name: int(state["next"][name]) for name in self._next}
        self._texts = {
            uid: (
                np.array(arrays["tokens"][begin:end], np.int32),
                np.array(arrays["logprobs"][begin:end], np.float32),
            )
            for uid, (begin, end) in zip(columns["uid"].tolist(), ends, strict=True)
        }
        self._columns, self._next = columns, counters


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
