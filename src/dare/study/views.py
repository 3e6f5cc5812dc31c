"""A buffer as another estimator would have kept it: fewer rollouts a prompt, scores of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, rank_from_end
from dare.curriculum.buffer import RolloutBuffer, ScoreRequest
from dare.curriculum.rollouts import RolloutBatch
from dare.errors import InvalidInput


class NewestView(RolloutBuffer):
    """The newest K plain rollouts of each prompt of another buffer; nothing can be added.

    What is rescored here is remembered here: the buffer that is looked at never changes. K cannot
    exceed that buffer's own.
    """

    def __init__(self, source: RolloutBuffer, rollouts_per_prompt: int) -> None:
        super().__init__(min(rollouts_per_prompt, source.rollouts_per_prompt), source.groups)
        self._source = source
        self.forget()

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, column: str) -> Array:
        """A column of the source; scores taken through the view replace older ones there."""
        values = self._source[column]
        own = {"current": self._total, "scored_step": self._step}.get(column)
        if own is None or not len(self._uid):
            return values
        place = self._source.position(self._uid)
        newer = np.flatnonzero(place >= 0)
        newer = newer[self._step[newer] >= self._source["scored_step"][place[newer]]]
        changed = values.copy()
        changed[place[newer]] = own[newer]
        return changed

    @property
    def log_ratio(self) -> Array:
        """As of the last scoring, here or in the source."""
        ratio: Array = self["current"] - self["behaviour"]
        return ratio

    @property
    def plain(self) -> Array:
        """True for the newest K plain rollouts of each prompt."""
        plain = self._source.plain
        kind = 2 * self._source["prompt"] + plain
        newest: Array = plain & (rank_from_end(kind) < self.rollouts_per_prompt)
        return newest

    def add(self, batch: RolloutBatch, step: int) -> dict[str, Array]:
        """Refused: rollouts are added to the source."""
        raise InvalidInput("buffer", "a view", "add rollouts to the buffer that it shows")

    def batch(self, index: Any) -> RolloutBatch:
        """These rollouts of the source."""
        return self._source.batch(index)

    def request(self, rows: Array) -> ScoreRequest:
        """All rollouts that the view has of these prompts, to be scored."""
        index = np.flatnonzero(self.plain & np.isin(self["prompt"], rows))
        return ScoreRequest(self["uid"][index], self.batch(index))

    def rescore(self, uid: Any, total_logprob: Any, step: int) -> None:
        """Scores for the view alone; they replace the ones that it was given before."""
        self._uid = np.asarray(uid, dtype=np.int64)
        self._total = np.asarray(total_logprob, dtype=np.float64)
        self._step = np.full(len(self._uid), step, np.int64)

    def add_scores(self, uid: Any, total_logprob: Any, step: int) -> None:
        """Scores for the view alone, beside those that it has of other rollouts."""
        here = self._source.position(self._uid) >= 0
        kept = here & ~np.isin(self._uid, uid)
        before = self._uid[kept], self._total[kept], self._step[kept]
        self.rescore(uid, total_logprob, step)
        self._uid = np.concatenate([before[0], self._uid])
        self._total = np.concatenate([before[1], self._total])
        self._step = np.concatenate([before[2], self._step])

    def forget(self) -> None:
        """Show the source's scores again."""
        self.rescore(np.empty(0, np.int64), np.empty(0), 0)
