"""Shadows: other estimators hear everything that the run's own hears, and decide nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, keyed_rng
from dare.curriculum.curriculum import Curriculum
from dare.curriculum.estimators.base import Estimator, Outcome
from dare.curriculum.references import ColdStart
from dare.curriculum.refresh import Scorer
from dare.study.cost import Cost
from dare.study.watchers import Watcher, build_watcher


class Watched(Estimator):
    """The curriculum's own estimator, unchanged, with the shadows told of every call.

    It wants the log-probs of every rollout, since some of the shadows read them.
    """

    def __init__(self, own: Estimator, shadows: Shadows) -> None:
        self.own, self._shadows = own, shadows
        self.count, self.probe_group, self.uses_prior = own.count, own.probe_group, own.uses_prior
        self.needs, self.generates = own.needs, own.generates
        self.rescores = own.rescores or shadows.rescore_for_them

    def set_prior(self, prior_P: Array) -> None:
        """The cold start is done: the outcome that comes next is that of the references."""
        self.own.set_prior(prior_P)
        self._shadows.expect_references()

    def observe(self, outcome: Outcome) -> None:
        """See Estimator."""
        self.own.observe(outcome)
        self._shadows.observe(outcome)

    def read(self, step: int, rng: np.random.Generator, token_budget: int) -> int:
        """See Estimator. What the shadows read costs the run nothing."""
        spent = self.own.read(step, rng, token_budget)
        self._shadows.read(step, spent, token_budget)
        return spent

    def mixed(self, size: int) -> Array:
        """See Estimator."""
        return self.own.mixed(size)

    def tokens(self) -> Array | None:
        """See Estimator."""
        return self.own.tokens()

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
        embeddings: Array | None = None,
    ) -> None:
        """`watching`: names of estimators, and with settings those that are the run's with these.

        `embeddings` are for cold starts, where the run has none of its own.
        """
        self._curriculum = curriculum
        self.watchers = {
            name: build_watcher(name, curriculum, changes) for name, changes in watching.items()
        }
        self._references_due = False
        self.rescored, self.cold = 0, 0
        self.own_seconds = 0.0
        config, count = curriculum.config, len(curriculum.prompts)
        self._has_cold_start = curriculum.estimator.uses_prior
        self._cold = curriculum.cold_start
        if not self._has_cold_start:
            # The first prompts that come out are the references of those that need some.
            none = dataclasses.replace(config.cold_start, references=0)
            self._cold = ColdStart(count, none, config.seed, embeddings)
        curriculum.estimator = Watched(curriculum.estimator, self)

    @property
    def rescore_for_them(self) -> bool:
        """Whether some shadow lives on what the run's refresh budget rescores."""
        return any(w.aligned and not w.rescored for w in self.watchers.values())

    def expect_references(self) -> None:
        """The next outcome is that of the cold start."""
        self._references_due = True

    def observe(self, outcome: Outcome) -> None:
        """The same outcome to all; each has its own cold start from the same references."""
        if not self._has_cold_start:
            self._references_due = self._first_comers(outcome)
        elif self._references_due and not self._curriculum.config.cold_start.train:
            self.cold = int(self._curriculum.buffer["length"].sum())
        for watcher in self.watchers.values():
            if watcher.own:
                continue
            with watcher.cost.measure():
                if self._references_due:
                    watcher.prior_P = self._cold.prior(watcher.temperature)
                    watcher.estimator.set_prior(watcher.prior_P)
                watcher.estimator.observe(outcome)
        self._references_due = False

    def read(self, step: int, spent: int, token_budget: int) -> None:
        """The run's own has read; so may each of the others, with the same budget."""
        for watcher in self.watchers.values():
            before = watcher.cost.seconds
            if watcher.own:
                watcher.cost.scored += spent
                continue
            with watcher.cost.measure():
                rng = keyed_rng(self._curriculum.config.seed, step, "shadow read")
                watcher.cost.scored += watcher.estimator.read(step, rng, token_budget)
            self.own_seconds += watcher.cost.seconds - before

    def refresh(self, step: int) -> None:
        """The policy has changed, and the run has rescored what its budget allows."""
        buffer = self._curriculum.buffer
        self.rescored += int(buffer["length"][buffer["scored_step"] == step].sum())
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
        found = {name: dataclasses.replace(w.cost) for name, w in self.watchers.items()}
        read = sum(w.cost.scored for w in self.watchers.values() if w.own)
        tokens = max(1, self.rescored + read)
        for name, watcher in self.watchers.items():
            cost = found[name]
            if watcher.aligned and self.cold:
                cost.start(self.cold, embedded)
            if watcher.aligned and not watcher.rescored:
                cost.scored += self.rescored
                cost.seconds += refresh_seconds * self.rescored / tokens
            if watcher.own:
                cost.seconds += refresh_seconds * read / tokens
            if not watcher.rescored:
                cost.estimates += refreshes * len(self._curriculum.prompts)
        return found

    def _refresh(self, watcher: Watcher, step: int) -> None:
        if watcher.own:
            return
        seed = self._curriculum.config.seed
        watcher.estimator.refresh(step, keyed_rng(seed, step, "shadow refresh"))

    def _first_comers(self, outcome: Outcome) -> bool:
        """Take new prompts as references until there are enough; whether there were any."""
        held = self._cold.arrays
        new = ~np.isin(outcome.prompt_Q, held["prompt"])
        room = self._curriculum.config.cold_start.references - len(held["prompt"])
        new &= np.cumsum(new) <= room
        for name, values in (
            ("prompt", outcome.prompt_Q),
            ("trials", outcome.trials_Q),
            ("failures", outcome.failures_Q),
        ):
            held[name] = np.concatenate([held[name], values[new]])
        return bool(new.any())
