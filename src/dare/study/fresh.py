"""Fresh rollouts of chosen prompts with the policy as it is: what a difficulty really is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dare.curriculum.arrays import Array
from dare.policy.generate import GenerationRequest

if TYPE_CHECKING:
    from dare.training.trainer import DareTrainer


@dataclass(frozen=True)
class Fresh:
    """failure_QR of each rollout (NaN where it could not be scored) and what they took."""

    failure_QR: Array
    tokens: int
    seconds: float

    @property
    def trials_Q(self) -> Array:
        """Scored rollouts of each prompt."""
        return np.isfinite(self.failure_QR).sum(axis=1)

    @property
    def failures_Q(self) -> Array:
        """Failures of each prompt among them."""
        return np.nansum(self.failure_QR, axis=1)

    @property
    def rate_Q(self) -> Array:
        """Failure rate of each prompt, NaN where nothing could be scored."""
        trials = self.trials_Q
        empty = np.full(len(trials), np.nan)
        return np.divide(self.failures_Q, trials, out=empty, where=trials > 0)


def fresh_rollouts(trainer: DareTrainer, rows: Array, count: int, purpose: str) -> Fresh:
    """`count` rollouts of each row, outside of the run: no budget, no record, no draw of it.

    Keyed by (seed, step, purpose, prompt): the other prompts asked for change nothing.
    """
    start = time.perf_counter()
    collector, args = trainer.collector, trainer.args
    place = np.repeat(np.arange(len(rows)), count)
    noise = rows[place] * count + np.tile(np.arange(count), len(rows))
    mine = collector.company.share(len(place))
    request = GenerationRequest(
        prompts=[trainer.store.tokens(int(row)) for row in rows],
        prompt_R=place[mine],
        max_tokens_R=np.full(len(mine), trainer.settings.max_tokens, dtype=np.int64),
        noise_R=noise[mine],
        seed=args.seed,
        step=trainer.state.global_step,
        purpose=purpose,
    )
    written = trainer.policy.generate(request, args.sampling).tokens if len(mine) else []
    rewards = collector.reward(rows[place[mine]], written)
    failure = [np.nan if reward is None else 1.0 - reward for reward in rewards]
    sizes = [len(tokens) for tokens in written]
    local = np.column_stack([np.array(failure, float), np.array(sizes, float)])
    shared = collector.company.exchange(local)
    return Fresh(
        failure_QR=shared[:, 0].reshape(len(rows), count),
        tokens=int(shared[:, 1].sum()),
        seconds=time.perf_counter() - start,
    )
