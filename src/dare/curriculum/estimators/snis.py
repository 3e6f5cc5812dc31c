"""Policy-aligned estimates: self-normalised importance sampling over the buffer (METHOD 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dare.config import EstimatorConfig
from dare.curriculum.arrays import Array, compact
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators.base import Estimator, Outcome, check_rates
from dare.curriculum.estimators.history import RATES, HistoryFilter, beta_median
from dare.curriculum.estimators.paper import effective_sample_size, snis_difficulty, weights
from dare.curriculum.worth import honesty, judge_claims, judge_lean, lean, without_lean

_UNTRIED = 4.0
"""Most rollouts that a forecast is taken for where a prompt was never rolled out. How far forecasts
are off is learnt from prompts that were drawn; those near 0 and 1 are not, and are less sure."""

_EDGE = 0.02  # rates are not taken to be nearer to 0 or 1 when their variance is asked for


def combine(
    history: Array, held: Array, aligned: Array, fresh: Array, shared: Array
) -> tuple[Array, Array]:
    """Best linear combination of two estimates that rest on the same rollouts.

    In units of p(1 - p) the history has variance 1/held, the aligned estimate 1/fresh, and they
    have 1/shared in common, `shared` being all rollouts ever taken of the prompt. So without drift
    (held = shared) the history is left as it is, and where it has faded the aligned estimate
    counts by its ESS. Returns the rate and its evidence, one over the variance that remains.
    """
    shared = np.maximum(shared, np.maximum(held, fresh))
    own, other, common = 1.0 / held, 1.0 / np.maximum(fresh, 1e-9), 1.0 / shared
    gain = (own - common) / np.maximum(own + other - 2.0 * common, 1e-12)
    variance = (1 - gain) ** 2 * own + gain**2 * other + 2 * gain * (1 - gain) * common
    return history + gain * (aligned - history), 1.0 / variance


class SnisEstimator(Estimator):
    """SNIS over the buffered plain rollouts x recency x shrinkage.

    The prompt's whole history, faded at the rate that predicts best, is the prior; the SNIS
    estimate over its rescored rollouts corrects it by the evidence behind each (see `combine`). A
    rollout that was last scored dt steps ago keeps 1 / (1 + c g dt) of its weight, c being the
    history's rate and g the size of its group; one that was never rescored says nothing that the
    history does not. A prompt that was trained on is mostly easier than its record: what all
    records lean by is learnt from prompts drawn again, and taken off. The read-out is the median.
    """

    rescores = True
    # A group that teaches nothing has one reward, which no weights inside it would change.
    scores = "trained"

    def __init__(self, count: int, buffer: RolloutBuffer, config: EstimatorConfig) -> None:
        super().__init__(count)
        self._buffer, self._config = buffer, config
        rates = RATES if config.forgetting == "auto" else (float(config.forgetting),)
        self._history = HistoryFilter(count, config.prior_strength, rates)
        self._arrays.update(self._history.arrays)
        self._arrays["evidence"] = np.zeros(count)
        self._arrays["trials"] = np.zeros(count)
        self._arrays["forecast"] = np.full(count, np.nan)
        self._arrays["own_rate"] = np.full(count, 0.5)
        self._arrays["own_evidence"] = np.zeros(count)
        self._arrays["said"] = np.full(count, 0.5)  # before the lean is taken off
        population = self._history.population
        self._scalars.update(population=population, accepted=0.0, ess=0.0, strength=0.0)
        self._scalars.update(excess=0.0, claimed=0.0, lean_missed=0.0, lean_square=0.0)

    def set_prior(self, prior_P: Array) -> None:
        """Cold-start difficulties: the estimate of unseen prompts, and a seen one's first prior."""
        prior = check_rates(prior_P, self.count, "cold start")
        self._arrays["prior"][:] = prior
        unseen = ~self._arrays["seen"]
        self._arrays["difficulty"][unseen] = prior[unseen]

    def set_forecast(self, forecast_P: Array, strength: float) -> None:
        """Rates all that is known of unseen prompts, and worth `strength` rollouts of seen ones."""
        self._arrays["forecast"] = np.asarray(forecast_P, dtype=np.float64)
        self._scalars["strength"] = float(strength)

    def observe(self, outcome: Outcome) -> None:
        """Take the step's groups into the history and read the buffer again."""
        rows = outcome.prompt_Q
        if len(rows):
            self._judge(outcome)
            self._arrays["trials"][rows] += outcome.trials_Q
            self._history.observe(rows, outcome.trials_Q, outcome.failures_Q, outcome.step)
        self._read(outcome.step)

    def refresh(self, step: int, rng: np.random.Generator) -> int:
        """Read the rescored buffer as of this step."""
        self._read(step)
        return 0

    def evidence(self) -> Array:
        """Effective rollouts behind each estimate."""
        return self._arrays["evidence"].copy()

    def metrics(self) -> dict[str, float]:
        """Mean ESS of the buffered prompts, share above tau, and the drift learnt."""
        drift = float(self._history.drift[self._history.best])
        return {
            "ess": self._scalars["ess"],
            "ess_accepted": self._scalars["accepted"],
            "forgetting": self._history.rate,
            "difficulty_drift": drift,
            "forecast_strength": self._scalars["strength"],
            "history_honesty": honesty(self._scalars),
            "history_lean": lean(self._scalars),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore, and hand the history its own arrays again."""
        super().load_state_dict(state)
        self._history.arrays = {name: self._arrays[name] for name in self._history.arrays}
        self._history.population = self._scalars["population"]

    def _read(self, step: int) -> None:
        """Estimates of all prompts at `step` from buffer, history and cold start."""
        plain = self._buffer.plain
        prompts, index = compact(self._buffer["prompt"][plain])
        log_ratio = self._buffer.log_ratio[plain]
        unknown = np.isnan(log_ratio)
        # What was sampled in this very step comes from the policy of now: its ratio is 1.
        weighed = ~unknown | (self._buffer["step"][plain] == step)
        ratio = weights(np.where(unknown, 0.0, log_ratio), self._config.clip)
        reward = self._buffer["reward"][plain].astype(np.float64)
        ess = effective_sample_size(ratio * weighed, index, len(prompts))
        accepted = ess >= self._config.ess_threshold
        self._scalars["ess"] = float(ess[ess > 0].mean()) if weighed.any() else 0.0
        self._scalars["accepted"] = float(accepted[ess > 0].mean()) if weighed.any() else 0.0
        difficulty = self._arrays["prior"].copy()
        evidence = np.zeros(self.count)
        seen = np.flatnonzero(self._arrays["seen"])
        difficulty[seen], evidence[seen] = self._history.estimate(seen, step)
        recency = self._recency(plain, step)
        value = recency * ratio
        aligned = snis_difficulty(value, reward, index, len(prompts))
        fresh = _fresh_evidence(value, recency, index, len(prompts))
        difficulty[prompts], evidence[prompts] = combine(
            difficulty[prompts],
            evidence[prompts],
            aligned,
            fresh,
            self._arrays["trials"][prompts],
        )
        self._arrays["own_rate"] = difficulty.copy()
        self._arrays["own_evidence"] = evidence.copy()
        said, evidence[seen] = self._with_forecast(seen)
        self._arrays["said"][seen] = said
        difficulty[seen] = beta_median(without_lean(self._scalars, said), evidence[seen])
        predicted, strength = self._arrays["forecast"], self._scalars["strength"]
        unseen = np.isfinite(predicted) & ~self._arrays["seen"]
        worth = np.full(np.count_nonzero(unseen), min(strength, _UNTRIED))
        difficulty[unseen] = beta_median(predicted[unseen], worth)
        self._arrays["difficulty"], self._arrays["evidence"] = difficulty, evidence

    def _with_forecast(self, rows: Array) -> tuple[Array, Array]:
        """Rate and evidence of seen prompts: their own, and the forecast as rollouts beside it.

        A prompt that was trained on is no longer what it was. Where nothing else is known that is
        no matter; beside a forecast, how much its past was worth so far decides between them.
        """
        own, held = self._arrays["own_rate"][rows], self._arrays["own_evidence"][rows]
        predicted, strength = self._arrays["forecast"][rows], self._scalars["strength"]
        known = np.isfinite(predicted) & (strength > 0)
        held = np.where(known, honesty(self._scalars) * held, held)
        total = held + np.where(known, strength, 0.0)
        gain = np.where(known, strength, 0.0) / np.maximum(total, 1e-12)
        return own + gain * (np.where(known, predicted, own) - own), total

    def _judge(self, outcome: Outcome) -> None:
        """How far groups came out from what was said, and from what their own rollouts said."""
        arrays, rows = self._arrays, outcome.prompt_Q
        again = arrays["seen"][rows] & (outcome.trials_Q > 1)
        failures, trials = outcome.failures_Q[again], outcome.trials_Q[again]
        judge_lean(self._scalars, failures, trials, arrays["said"][rows[again]])
        judged = again & np.isfinite(arrays["forecast"][rows]) & (arrays["own_evidence"][rows] > 0)
        rows = rows[judged]
        likely, evidence = self._with_forecast(rows)
        likely = np.clip(likely, _EDGE, 1.0 - _EDGE)
        judge_claims(
            self._scalars,
            outcome.failures_Q[judged],
            outcome.trials_Q[judged],
            arrays["own_rate"][rows],
            arrays["own_evidence"][rows],
            likely * (1.0 - likely) * evidence / (evidence + 1.0),
        )

    def _recency(self, plain: Array, step: int) -> Array:
        """What is left of each buffered rollout's weight; 0 where it was never rescored."""
        scored = self._buffer["scored_step"][plain]
        fade = self._history.rate * self._buffer["group_size"][plain] * (step - scored)
        return np.where(scored > self._buffer["step"][plain], 1.0 / (1.0 + fade), 0.0)


def _fresh_evidence(value_R: Array, recency_R: Array, index_R: Array, count: int) -> Array:
    """ESS of the weights times their mean recency: the sum of recencies where all ratios are 1."""
    ess = effective_sample_size(value_R, index_R, count)
    total = np.bincount(index_R, weights=value_R, minlength=count)
    recent = np.bincount(index_R, weights=value_R * recency_R, minlength=count)
    return ess * np.divide(recent, total, out=np.zeros(count), where=total > 0)
