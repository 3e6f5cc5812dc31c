"""Shadows: other estimators hear everything that the run's own hears, and decide nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from dare.config import CurriculumConfig
from dare.curriculum.arrays import Array, keyed_rng
from dare.curriculum.buffer import Scorer, choose_stale
from dare.curriculum.coldstart import ColdStart
from dare.curriculum.curriculum import Curriculum
from dare.curriculum.estimators.base import Estimator, Wanted
from dare.curriculum.rollouts import Outcome
from dare.study.watchers import Cost, Watcher, build_watcher


class Shadows:
    """Stands in for the run's own estimator, unchanged, and tells the watching ones what that is
    told.

    It wants the log-probs that the run's own wants and those that some shadow reads. Its state is
    the own one's: a checkpoint is that of a run without shadows.
    """

    def __init__(
        self,
        curriculum: Curriculum,
        watching: Mapping[str, Mapping[str, Any] | None],
        scorer: Scorer,
        embed: Callable[[], Array | None],
    ) -> None:
        """`watching`: names of estimators, and with settings those that are the run's with these.

        `scorer` rescores for shadows where the run rescores nothing; `embed` gives the prompts'
        embeddings and is called where some shadow has a cold start.
        """
        self.own = curriculum.estimator
        self._curriculum, self._scorer = curriculum, scorer
        self.watchers = {
            name: build_watcher(name, curriculum, changes) for name, changes in watching.items()
        }
        self.own_cost = next((w.cost for w in self.watchers.values() if w.own), Cost())
        """Of the run's own estimator; nobody reads it where that is none of those asked for."""
        self._references_due = False
        self._budget = 0
        self.rescored, self.cold = 0, 0  # tokens that alignment and the cold start have taken
        self.beside_seconds = 0.0
        """Seconds of the run's refreshes that were not spent on the run's rescoring."""
        config, count = curriculum.config, len(curriculum.prompts)
        embeddings = embed() if any(w.estimator.uses_prior for w in self._shadowing) else None
        self._cold, self._first = curriculum.cold_start, 0
        if self._cold.finished:
            # The first prompts that come out are the references of those that need some.
            paper = CurriculumConfig.preset("paper").cold_start.references
            self._first = config.cold_start.references or paper
            none = dataclasses.replace(config.cold_start, references=0)
            self._cold = ColdStart(count, none, config.seed, embeddings)
        wanted = {self.own.scores, *(watcher.estimator.scores for watcher in self._shadowing)}
        self.scores: Wanted = next(kind for kind in ("all", "trained", "none") if kind in wanted)
        curriculum.estimator = cast(Estimator, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def set_prior(self, prior_P: Array) -> None:
        """The cold start is done: the outcome that comes next is that of the references."""
        self.own.set_prior(prior_P)
        self._references_due = True

    def observe(self, outcome: Outcome) -> None:
        """The same outcome to all; each has its own cold start from the same references."""
        with self.own_cost.measure():
            self.own.observe(outcome)
        if self._first:
            self._references_due = self._first_comers(outcome)
        elif self._references_due and not self._curriculum.config.cold_start.train:
            self.cold = int(self._curriculum.buffer["length"].sum())
        for watcher in self._shadowing:
            with watcher.cost.measure():
                if self._references_due and watcher.estimator.uses_prior:
                    watcher.prior_P = self._cold.prior(watcher.config.cold_start.temperature)
                    watcher.estimator.set_prior(watcher.prior_P)
                watcher.estimator.observe(outcome)
        self._references_due = False

    def read(self, step: int, rng: np.random.Generator, token_budget: int) -> int:
        """See Estimator. Each of the others has the same budget; it costs the run nothing."""
        self._budget = token_budget
        with self._beside_rescoring(self.own_cost):
            spent = self.own.read(step, rng, token_budget)
        _charge_reading(self.own_cost, spent)
        for watcher in self._shadowing:
            with self._beside_rescoring(watcher.cost):
                tokens = watcher.estimator.read(step, self._rng(step, "read"), token_budget)
            _charge_reading(watcher.cost, tokens)
        return spent

    def refresh(self, step: int, rng: np.random.Generator) -> int:
        """See Estimator. The run has rescored what its budget allows; the rest costs it nothing."""
        with self._beside_rescoring(self.own_cost):
            spent = self.own.refresh(step, rng)
        buffer = self._curriculum.buffer
        if self.own.rescores:
            self.rescored += int(buffer["length"][buffer["scored_step"] == step].sum())
        for watcher in self._shadowing:
            aligned = watcher.rescored or self.own.rescores
            with self._beside_rescoring(watcher.cost):
                if watcher.estimator.rescores and not aligned:
                    self._rescore_stale(watcher, step)
                self._refresh(watcher, step)
        return spent

    def estimates(self, rows: Array, step: int) -> dict[str, Array]:
        """Each shadow's estimate of these prompts for the policy of now."""
        found: dict[str, Array] = {}
        for name, watcher in self.watchers.items():
            with watcher.cost.measure():
                if watcher.rescored:
                    self._rescore(watcher, rows, step)
                    self._refresh(watcher, step)
                found[name] = watcher.estimator.median()[rows].copy()
        return found

    def costs(self, refresh_seconds: float, refreshes: int, embedded: int) -> dict[str, Cost]:
        """What each has cost; what the run did for alignment is charged to those that use it.

        `refresh_seconds` is what the run's refreshes took, `embedded` the tokens of all prompts.
        """
        found = {name: dataclasses.replace(w.cost) for name, w in self.watchers.items()}
        rescoring = max(0.0, refresh_seconds - self.beside_seconds) if self.rescored else 0.0
        for name, watcher in self.watchers.items():
            cost = found[name]
            if watcher.prior_P is not None:
                cost.start(self.cold, embedded)
            if watcher.estimator.rescores and not watcher.rescored:
                cost.scored += self.rescored
                cost.seconds += rescoring
            if not watcher.rescored:
                cost.estimates += refreshes * len(self._curriculum.prompts)
        return found

    @contextmanager
    def _beside_rescoring(self, cost: Cost) -> Iterator[None]:
        """Charge the time of this block, which is a part of the run's refresh, to `cost`."""
        before = cost.seconds
        with cost.measure():
            yield
        self.beside_seconds += cost.seconds - before

    @property
    def _shadowing(self) -> list[Watcher]:
        """All but the run's own estimator, which hears everything from the run."""
        return [watcher for watcher in self.watchers.values() if not watcher.own]

    def _rng(self, step: int, purpose: str) -> np.random.Generator:
        """The draws of the run's own estimator: one configured alike gives the same estimate."""
        return keyed_rng(self._curriculum.config.seed, step, purpose)

    def _refresh(self, watcher: Watcher, step: int) -> None:
        tokens = watcher.estimator.refresh(step, self._rng(step, "refresh"))
        if watcher.estimator.generates:
            watcher.cost.generated += tokens
        else:
            watcher.cost.scored += tokens

    def _rescore(self, watcher: Watcher, rows: Array, step: int) -> None:
        """Score all that the view has of these prompts; the run's own scores stay as they are."""
        request = watcher.view.request(rows)
        if len(request.uid_R):
            watcher.view.rescore(request.uid_R, self._scorer(request), step)
            watcher.cost.scored += int(request.rollouts.offsets[-1])
        else:
            watcher.view.forget()
        watcher.cost.estimates += len(rows)

    def _rescore_stale(self, watcher: Watcher, step: int) -> None:
        """What a run of this estimator would rescore; the run's own scores stay as they are."""
        request = choose_stale(watcher.view, self._curriculum._chance, step, self._budget)
        if len(request.uid_R):
            watcher.view.add_scores(request.uid_R, self._scorer(request), step)
            watcher.cost.scored += int(request.rollouts.offsets[-1])

    def _first_comers(self, outcome: Outcome) -> bool:
        """Take new prompts as references until there are enough; whether there were any."""
        held = self._cold.arrays
        new = ~np.isin(outcome.prompt_Q, held["prompt"])
        new &= np.cumsum(new) <= self._first - len(held["prompt"])
        for name, values in (
            ("prompt", outcome.prompt_Q),
            ("trials", outcome.trials_Q),
            ("failures", outcome.failures_Q),
        ):
            held[name] = np.concatenate([held[name], values[new]])
        return bool(new.any())


def _charge_reading(cost: Cost, tokens: int) -> None:
    """The first reading is of all prompts and happens once, however many estimates follow."""
    if cost.scored:
        cost.scored += tokens
    else:
        cost.start(0, tokens)
