"""The estimators that only watch: what each is made of, sees of the buffer, and costs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dare.config import CurriculumConfig
from dare.curriculum.arrays import Array, rank_from_end
from dare.curriculum.buffer import RolloutBuffer, ScoreRequest
from dare.curriculum.curriculum import Curriculum
from dare.curriculum.estimators.base import Estimator
from dare.curriculum.estimators.build import build_estimator
from dare.curriculum.estimators.dare import LiveEstimator
from dare.curriculum.rollouts import Outcome, RolloutBatch
from dare.errors import InvalidInput


@dataclass
class Cost:
    """Tokens generated and read, seconds, and the number of estimates they were spent on.

    `once` of the tokens were spent before the first estimate, however many follow.
    """

    generated: int = 0
    scored: int = 0
    seconds: float = 0.0
    estimates: int = 0
    once: int = 0

    def start(self, generated: int, scored: int) -> None:
        """Add tokens that are spent once a run."""
        self.generated, self.scored = self.generated + generated, self.scored + scored
        self.once += generated + scored

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Add the time of this block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "seconds": round(self.seconds, 4)}


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
        kept = (self._source.position(self._uid) >= 0) & ~np.isin(self._uid, uid)
        before = self._uid[kept], self._total[kept], self._step[kept]
        self.rescore(uid, total_logprob, step)
        held = zip(before, (self._uid, self._total, self._step), strict=True)
        self._uid, self._total, self._step = (np.concatenate(pair) for pair in held)

    def forget(self) -> None:
        """Show the source's scores again."""
        self.rescore(np.empty(0, np.int64), np.empty(0), 0)


class MeanOfSeen(Estimator):
    """Every prompt at the mean failure rate of the groups seen so far, 0.5 before the first."""

    scores = "none"
    uses_prior = False

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._scalars = {"groups": 0, "failed": 0.0}

    def observe(self, outcome: Outcome) -> None:
        """See Estimator."""
        scored = outcome.trials_Q > 0
        if scored.any():
            rates = outcome.failures_Q[scored] / outcome.trials_Q[scored]
            self._scalars["groups"] += len(rates)
            self._scalars["failed"] += float(rates.sum())
            mean = self._scalars["failed"] / self._scalars["groups"]
            self._arrays["difficulty"] = np.full(self.count, mean)


WATCHING = {
    "dare": "a regression on the policy's states, on solutions where there are some, and on groups"
    " of the prompt itself",
    "dare-no-solutions": "the same without solutions",
    "dare-no-states": "the same without states and solutions: the prompt's length and groups",
    "paper": "SNIS over the last group, all of it rescored; the cold start below the ESS threshold",
    "paper-budget": "the same, with the scores that the refresh budget of a run pays for",
    "previous-fr": "mean of the buffered rollouts",
    "posterior": "MoPPS: discounted Beta posterior",
    "mean-of-seen": "mean of the groups seen so far, for every prompt",
    "uniform": "0.5 for every prompt",
}


# The settings of each, where they are not those of `dare`.
_PRESETS = {"paper": "paper", "paper-budget": "paper", "previous-fr": "previous-fr"}
_PRESETS |= {"posterior": "mopps", "uniform": "grpo"}


@dataclass
class Watcher:
    """One estimator, its settings, its view of the run's buffer and what it has cost."""

    estimator: Estimator
    view: NewestView
    config: CurriculumConfig
    own: bool = False
    """Whether it is the run's own estimator, which hears everything anyway."""
    rescored: bool = False
    """Whether all of its rollouts are rescored where it is asked, not only what the run did."""
    prior_P: Array | None = None
    """Its cold start, once the references are in."""
    cost: Cost = field(default_factory=Cost)


def build_watcher(
    name: str, curriculum: Curriculum, changes: Mapping[str, Any] | None = None
) -> Watcher:
    """The estimator of that name over the curriculum's prompts and buffer.

    With `changes` (settings by dotted name) it is the run's own with those; its name is none of
    `WATCHING` then.
    """
    run, count, services = curriculum.config, len(curriculum.prompts), curriculum.services
    if changes is not None:
        config = run.replace(changes)
    else:
        config = CurriculumConfig.preset(_PRESETS.get(name, "dare"))
    if name in ("dare-no-solutions", "dare-no-states"):
        services = dataclasses.replace(services, solutions=None)
    if name == "dare-no-states":
        services = dataclasses.replace(services, states=None)
    last = name in ("paper", "paper-budget")  # the latest group only: K = G
    kept = run.medium.group_size if last else config.buffer.rollouts_per_prompt
    view = NewestView(curriculum.buffer, kept)
    if name == "dare" and isinstance(curriculum.estimator, LiveEstimator):
        return Watcher(curriculum.estimator, view, config, own=True)
    if name == "mean-of-seen":
        return Watcher(MeanOfSeen(count), view, config)
    estimator = build_estimator(config, count, view, services)
    return Watcher(estimator, view, config, rescored=name == "paper")
