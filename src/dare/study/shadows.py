"""Shadows: other estimators hear everything that the run's own hears, and decide nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, keyed_rng
from dare.curriculum.curriculum import Curriculum
from dare.curriculum.estimators.base import Estimator, Outcome
from dare.curriculum.refresh import Scorer
from dare.study.cost import Cost
from dare.study.watchers import Watcher, build_watcher


class Watched(Estimator):
    """The curriculum's own estimator, unchanged, with the shadows told of every call."""

    def __init__(self, own: Estimator, shadows: Shadows) -> None:
        self.own, self._shadows = own, shadows
        self.count, self.probe_group, self.uses_prior = own.count, own.probe_group, own.uses_prior
        self.rescores = own.rescores

    def set_prior(self, prior_P: Array) -> None:
        """The cold start is done: the outcome that comes next is that of the references."""
        self.own.set_prior(prior_P)
        self._shadows.expect_references()

    def set_forecast(self, forecast_P: Array, strength: float) -> None:
        """See Estimator."""
        self.own.set_forecast(forecast_P, strength)
        self._shadows.set_forecast(forecast_P, strength)

    def observe(self, outcome: Outcome) -> None:
        """See Estimator."""
        self.own.observe(outcome)
        self._shadows.observe(outcome)

    def refresh(self, step: int, rng: np.random.Generator) -> int:
        """See Estimator. What the shadows do here costs the run nothing."""
        spent = self.own.refresh(step, rng)
        self._shadows.refresh(step)
        return spent

    def probe(self, step: int, rng: np.random.Generator) -> Array | None:
        """See Estimator."""
        return self.own.probe(step, rng)

    def keep(self, step: int) -> Array | None:
        """See Estimator."""
        return self.own.keep(step)

    def difficulty(self) -> Array:
        """See Estimator."""
        return self.own.difficulty()

    def signal(self) -> Array:
        """See Estimator."""
        return self.own.signal()

    def sample(self, rng: np.random.Generator) -> Array:
        """See Estimator."""
        return self.own.sample(rng)

    def evidence(self) -> Array:
        """See Estimator."""
        return self.own.evidence()

    def metrics(self) -> dict[str, float]:
        """See Estimator."""
        return self.own.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Of the curriculum's own estimator: a checkpoint is that of a run without shadows."""
        return self.own.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Estimator."""
        self.own.load_state_dict(state)


class Shadows:
    """The watching estimators of one run, and the tokens that alignment has taken so far."""

    def __init__(
        self,
        curriculum: Curriculum,
        watching: Mapping[str, Mapping[str, Any] | None],
    ) -> None:
        """`watching`: names of estimators, and with settings those that are `dare` with these."""
        self._curriculum = curriculum
        self.watchers = {
            name: build_watcher(name, curriculum, changes) for name, changes in watching.items()
        }
        self._references_due = False
        self._read = False
        self.rescored, self.read_again, self.read_first, self.cold = 0, 0, 0, 0
        self.own_seconds = 0.0
        curriculum.estimator = Watched(curriculum.estimator, self)

    def expect_references(self) -> None:
        """The next outcome is that of the cold start."""
        self._references_due = True

    def set_forecast(self, forecast_P: Array, strength: float) -> None:
        """What the solutions say, to those that listen."""
        for watcher in self.watchers.values():
            if watcher.foresight:
                watcher.estimator.set_forecast(forecast_P.copy(), strength)

    def observe(self, outcome: Outcome) -> None:
        """The same outcome to all; each has its own cold start from the same references."""
        foresight = self._curriculum.foresight
        if foresight is not None and foresight.begun and not self._read:
            self._read = True
            self.read_first = int(np.nansum(foresight.arrays["prompt_statistics"][:, 0]))
        if self._references_due and not self._curriculum.config.cold_start.train:
            self.cold = int(self._curriculum.buffer["length"].sum())
        for watcher in self.watchers.values():
            with watcher.cost.measure():
                if self._references_due:
                    watcher.prior_P = self._curriculum.cold_start.prior(watcher.temperature)
                    watcher.estimator.set_prior(watcher.prior_P)
                watcher.estimator.observe(outcome)
        self._references_due = False

    def refresh(self, step: int) -> None:
        """The policy has changed, and the run has rescored what its budget allows."""
        buffer, foresight = self._curriculum.buffer, self._curriculum.foresight
        self.rescored += int(buffer["length"][buffer["scored_step"] == step].sum())
        if foresight is not None:
            fresh = foresight.arrays["prompt_step"] == step
            self.read_again += int(np.nansum(foresight.arrays["prompt_statistics"][fresh, 0]))
        for watcher in self.watchers.values():
            before = watcher.cost.seconds
            with watcher.cost.measure():
                self._refresh(watcher, step)
            self.own_seconds += watcher.cost.seconds - before

    def estimates(self, rows: Array, step: int, scorer: Scorer) -> dict[str, Array]:
        """Each shadow's estimate of these prompts for the policy of now."""
        found: dict[str, Array] = {}
        for name, watcher in self.watchers.items():
            with watcher.cost.measure():
                if watcher.rescored:
                    self.rescore(watcher, rows, step, scorer)
                    self._refresh(watcher, step)
                found[name] = watcher.estimator.difficulty()[rows].copy()
        return found

    def rescore(self, watcher: Watcher, rows: Array, step: int, scorer: Scorer) -> None:
        """Score all that the view has of these prompts; the run's own scores stay as they are."""
        request = watcher.view.request(rows)
        if len(request.uid_R):
            watcher.view.rescore(request.uid_R, scorer(request), step)
            watcher.cost.scored += int(request.rollouts.offsets[-1])
        else:
            watcher.view.forget()
        watcher.cost.estimates += len(rows)

    def costs(self, refresh_seconds: float, refreshes: int, embedded: int) -> dict[str, Cost]:
        """What each has cost; what the run did for alignment is charged to those that use it.

        `refresh_seconds` were spent on rescoring and reading, `embedded` tokens on the cold start.
        """
        tokens = max(1, self.rescored + self.read_again)
        found = {name: dataclasses.replace(w.cost) for name, w in self.watchers.items()}
        for name, watcher in self.watchers.items():
            cost = found[name]
            if watcher.aligned and self.cold:
                cost.start(self.cold, embedded)
            if watcher.foresight:
                cost.start(0, self.read_first)
            if watcher.aligned and not watcher.rescored:
                shared = self.rescored + (self.read_again if watcher.foresight else 0)
                cost.scored += shared
                cost.seconds += refresh_seconds * shared / tokens
            if not watcher.rescored:
                cost.estimates += refreshes * len(self._curriculum.prompts)
        return found

    def _refresh(self, watcher: Watcher, step: int) -> None:
        seed = self._curriculum.config.seed
        watcher.estimator.refresh(step, keyed_rng(seed, step, "shadow refresh"))
