"""What one sampled response is, and a columnar batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, compact, offsets_of, ragged_positions, to_numpy
from dare.errors import require


class Conditioning(IntEnum):
    """What the policy was shown. Only PLAIN rollouts feed a difficulty estimate (METHOD 2)."""

    PLAIN = 0
    THINK_LONGER = 1
    HINTED = 2


class Finish(IntEnum):
    """Why the rollout ended."""

    STOP = 0
    LENGTH = 1


@dataclass(frozen=True)
class RolloutBatch:
    """Rollouts as columns (R rollouts, flat ragged tokens); build one with `from_lists`.

    prompt_R            row of the prompt in the PromptTable
    tokens, logprobs    flat over all rollouts; log-probs at the sampling temperature over the
                        full vocabulary (for the loss)
    offsets             start of each rollout in them, length R + 1
    total_logprob_R     log-probability of the rollout under the distribution really sampled from
                        (temperature, nucleus, stop rules; for SNIS)
                        NaN in both marks log-probs that are not known yet: the update's own pass
                        finds them (`Curriculum.record_behaviour`)
    reward_R            what advantages are made of, a finite number; NaN marks an unscored rollout
    success_R           the outcome in [0, 1] that difficulty is made of: the reward itself unless
                        given; NaN where success cannot be told
    """

    prompt_R: Array
    tokens: Array
    logprobs: Array
    offsets: Array
    total_logprob_R: Array
    reward_R: Array
    conditioning_R: Array
    finish_R: Array
    success_R: Array = None  # type: ignore[assignment]  # the reward, see __post_init__

    def __post_init__(self) -> None:
        if self.success_R is None:
            object.__setattr__(self, "success_R", self.reward_R)

    @classmethod
    def from_lists(
        cls,
        prompt: Any,
        tokens: Sequence[Any],
        logprobs: Sequence[Any] | None,
        reward: Sequence[float | None],
        *,
        total_logprob: Any = None,
        conditioning: Any = None,
        finish: Any = None,
        success: Sequence[float | None] | None = None,
    ) -> RolloutBatch:
        """Check and pack per-rollout lists. A reward of None means unscored; NaN is an error.

        Rewards lie in [0, 1] unless `success` says what came of each rollout (None: nobody knows).
        `logprobs` of None means that no log-probs are known yet. `total_logprob` defaults to the
        sum of `logprobs`, right only without nucleus or top-k.
        """
        prompt_R = to_numpy(prompt, np.int64, "prompt").reshape(-1)
        count = len(prompt_R)
        reward_R = _numbers(reward, "reward", unit=success is None)
        success_R = reward_R if success is None else _numbers(success, "success", unit=True)
        success_R = np.where(np.isnan(reward_R), reward_R, success_R)
        lengths = np.array([len(row) for row in tokens], dtype=np.int64)
        require(len(reward_R) == count, "reward", len(reward_R), f"must have {count} entries")
        require(len(success_R) == count, "success", len(success_R), f"must have {count} entries")
        require(len(lengths) == count, "tokens", len(lengths), f"must have {count} rollouts")
        flat = [to_numpy(row, np.int32, "tokens") for row in tokens]
        offsets = offsets_of(lengths)
        if logprobs is None:
            fix = "is of no use without logprobs; give both, or neither"
            require(total_logprob is None, "total_logprob", total_logprob, fix)
            logprob, total = np.full(offsets[-1], np.nan, np.float32), np.full(count, np.nan)
        else:
            logprob, total = behaviour_of(offsets, logprobs, total_logprob)
        return cls(
            prompt_R=prompt_R,
            tokens=np.concatenate(flat) if count else np.empty(0, np.int32),
            logprobs=logprob,
            offsets=offsets,
            total_logprob_R=total,
            reward_R=reward_R,
            conditioning_R=_codes(conditioning, count, Conditioning, "conditioning"),
            finish_R=_codes(finish, count, Finish, "finish"),
            success_R=success_R,
        )

    @classmethod
    def concatenate(cls, batches: Sequence[RolloutBatch]) -> RolloutBatch:
        """One batch from several, in order (what each process generated, say)."""
        require(batches, "batches", batches, "must hold at least one batch")
        columns = {
            name: np.concatenate([getattr(batch, name) for batch in batches])
            for name in cls.__dataclass_fields__
            if name != "offsets"
        }
        lengths = np.concatenate([batch.length_R for batch in batches])
        return cls(offsets=offsets_of(lengths), **columns)

    def __len__(self) -> int:
        return len(self.prompt_R)

    @property
    def length_R(self) -> Array:
        """Tokens of each rollout."""
        return np.diff(self.offsets)

    @property
    def scored_R(self) -> Array:
        """True where the rollout has a reward."""
        return ~np.isnan(self.reward_R)

    @property
    def plain_R(self) -> Array:
        """True where the rollout was sampled from the bare prompt."""
        return self.conditioning_R == Conditioning.PLAIN

    @property
    def evidence_R(self) -> Array:
        """True where the rollout says something of its prompt's difficulty."""
        return self.plain_R & ~np.isnan(self.success_R)

    def response(self, row: int) -> Array:
        """Token ids of one rollout."""
        found: Array = self.tokens[self.offsets[row] : self.offsets[row + 1]].astype(np.int64)
        return found

    def with_behaviour(self, rows: Any, logprobs: Sequence[Any], total: Any) -> RolloutBatch:
        """The batch with the log-probs of these rows filled in."""
        rows = np.asarray(rows, dtype=np.int64)
        length = self.length_R[rows]
        flat, sums = behaviour_of(offsets_of(length), logprobs, total)
        filled, totals = self.logprobs.copy(), self.total_logprob_R.copy()
        filled[ragged_positions(self.offsets[:-1][rows], length)] = flat
        totals[rows] = sums
        return replace(self, logprobs=filled, total_logprob_R=totals)

    @property
    def has_behaviour_R(self) -> Array:
        """True where the log-probs under the policy that sampled are known."""
        return ~np.isnan(self.total_logprob_R)


def behaviour_of(
    offsets: Array, logprobs: Sequence[Any], total_logprob: Any = None
) -> tuple[Array, Array]:
    """Flat log-probs and totals of rollouts that lie at `offsets`, checked."""
    lengths, count = np.diff(offsets), len(offsets) - 1
    given = np.array([len(row) for row in logprobs], dtype=np.int64)
    require(len(given) == count, "logprobs", len(given), f"must have {count} rollouts")
    uneven = np.flatnonzero(lengths != given)
    if len(uneven):
        row = int(uneven[0])
        fix = f"rollout {row} needs one log-prob per token, {lengths[row]} in all"
        require(False, "logprobs", int(given[row]), fix)
    flat = [to_numpy(row, np.float32, "logprobs") for row in logprobs]
    logprob = np.concatenate(flat) if count else np.empty(0, np.float32)
    finite = np.isfinite(logprob)
    require(finite.all(), "logprobs", _first(logprob, ~finite), "must be finite everywhere")
    if total_logprob is None:
        sums = np.concatenate([[0.0], np.cumsum(logprob, dtype=np.float64)])
        total = sums[offsets[1:]] - sums[offsets[:-1]]
    else:
        total = to_numpy(total_logprob, np.float64, "total_logprob").reshape(-1)
        size = len(total)
        require(size == count, "total_logprob", size, f"must have {count} entries")
    proper = np.isfinite(total)
    fix = "must be finite: a rollout that was sampled had a positive probability"
    require(proper.all(), "total_logprob", _first(total, ~proper), fix)
    return logprob, total


def _numbers(given: Sequence[float | None], field: str, *, unit: bool) -> Array:
    if hasattr(given, "detach") or isinstance(given, np.ndarray):
        values = to_numpy(given, np.float32, field).reshape(-1)
        unscored = np.zeros(len(values), dtype=bool)
    else:
        unscored = np.array([value is None for value in given], dtype=bool)
        filled = [0.0 if value is None else value for value in given]
        values = to_numpy(filled, np.float32, field).reshape(-1)
    inside = (values >= 0) & (values <= 1) if unit else np.isfinite(values)
    fix = f"must be {'in [0, 1]' if unit else 'finite'}, or None for an unscored rollout"
    require(inside.all(), field, _first(values, ~inside), fix)
    return np.where(unscored, np.float32("nan"), values).astype(np.float32)


def _codes(values: Any, count: int, kind: type[IntEnum], field: str) -> Array:
    if values is None:
        return np.zeros(count, dtype=np.uint8)
    codes = to_numpy(values, np.int64, field).reshape(-1)
    require(len(codes) == count, field, len(codes), f"must have {count} entries")
    known = np.isin(codes, [int(member) for member in kind])
    choices = ", ".join(f"{member.value} ({member.name.lower()})" for member in kind)
    require(known.all(), field, _first(codes, ~known), f"must be one of {choices}")
    return codes.astype(np.uint8)


def _first(values: Array, mask: Array) -> object:
    """The first offending value, for the message."""
    return values[mask][0].item() if mask.any() else None


@dataclass(frozen=True)
class Outcome:
    """What one step taught about difficulty: plain, scored rollouts only, one entry a prompt."""

    step: int
    prompt_Q: Array
    trials_Q: Array
    failures_Q: Array
    tokens_Q: Array | None = None
    """Mean tokens of a response, where they are known."""

    @classmethod
    def of(cls, rollouts: RolloutBatch, step: int) -> Outcome:
        """Plain rollouts of known success counted per prompt."""
        counted = rollouts.evidence_R
        prompts, inverse = compact(rollouts.prompt_R[counted])
        failure = 1.0 - rollouts.success_R[counted].astype(np.float64)

        def total(weights: Array | None = None) -> Array:
            return np.bincount(inverse, weights=weights, minlength=len(prompts))

        trials, tokens = total(), total(rollouts.length_R[counted])
        mean_tokens = tokens / np.maximum(trials, 1)
        return cls(step, prompts, trials.astype(np.float64), total(failure), mean_tokens)
