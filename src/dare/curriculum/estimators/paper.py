"""The paper's estimate: self-normalised importance sampling over the buffer (METHOD 4).

With it comes the finite-sample bound of the paper's Proposition on clipped weights.
"""

from __future__ import annotations

import math

import numpy as np

from dare.config import EstimatorConfig
from dare.curriculum.arrays import Array, compact
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators.base import Estimator, check_rates
from dare.curriculum.rollouts import Outcome
from dare.errors import require


def snis_bound(
    rollouts: int,
    *,
    clip: float,
    delta: float = 0.05,
    min_mean_weight: float = 1.0,
    clip_bias: float = 0.0,
) -> float:
    """Error that clipped SNIS exceeds with probability at most `delta` (Proposition 1).

    2 eps / (b - eps) + bias / b,   eps = exp(clip) sqrt(log(4 / delta) / (2 K)), where K is
    `rollouts`, b is `min_mean_weight`, a lower bound on the mean expected weight, and `clip_bias`
    is the mean of E|rho - W| (see `clip_bias`). Infinite where eps >= b: the worst case says
    nothing there, which for c = 4 is any K below some thousands; use the ESS instead.
    """
    require(rollouts >= 1, "rollouts", rollouts, "needs at least one")
    require(clip >= 0, "clip", clip, "c must not be negative")
    require(0 < delta < 1, "delta", delta, "is a probability, in (0, 1)")
    require(min_mean_weight > 0, "min_mean_weight", min_mean_weight, "must be positive")
    require(clip_bias >= 0, "clip_bias", clip_bias, "must not be negative")
    epsilon = math.exp(clip) * math.sqrt(math.log(4 / delta) / (2 * rollouts))
    if epsilon >= min_mean_weight:
        return math.inf
    return 2 * epsilon / (min_mean_weight - epsilon) + clip_bias / min_mean_weight


def clip_bias(ratio: Array, probability: Array, clip: float) -> float:
    """E[(rho - e^c)+ + (e^-c - rho)+] over enumerated responses and their behaviour probability."""
    upper, lower = math.exp(clip), math.exp(-clip)
    outside = np.maximum(ratio - upper, 0) + np.maximum(lower - ratio, 0)
    return float(np.sum(probability * outside))


def weights(log_ratio: Array, clip: float) -> Array:
    """w = exp(clip(log pi_now - log pi_behaviour, -c, c)) (Eq. 4); -inf becomes e^-c."""
    return np.exp(np.clip(log_ratio, -clip, clip))


def effective_sample_size(weight_R: Array, index_R: Array, count: int) -> Array:
    """ESS = (sum w)^2 / sum w^2 of each prompt (Eq. 10); 0 where there is no rollout."""
    total = np.bincount(index_R, weights=weight_R, minlength=count)
    square = np.bincount(index_R, weights=weight_R**2, minlength=count)
    return np.divide(total**2, square, out=np.zeros(count), where=square > 0)


def snis_difficulty(weight_R: Array, reward_R: Array, index_R: Array, count: int) -> Array:
    """sum w (1 - r) / sum w of each prompt; 0.5 where there is no rollout."""
    total = np.bincount(index_R, weights=weight_R, minlength=count)
    failed = np.bincount(index_R, weights=weight_R * (1.0 - reward_R), minlength=count)
    return np.divide(failed, total, out=np.full(count, 0.5), where=total > 0)


class PaperEstimator(Estimator):
    """SNIS over the buffered plain rollouts of a prompt where their ESS is at least tau.

    Below it, `below_threshold` decides: the cold start (the paper's text) or the plain failure
    rate of the same rollouts (the authors' code). A prompt without rollouts has the cold start.
    """

    rescores = True

    def __init__(self, count: int, buffer: RolloutBuffer, config: EstimatorConfig) -> None:
        super().__init__(count)
        self._buffer, self._config = buffer, config
        self._arrays["own"] = np.full(count, np.nan)  # where its rollouts say something
        self._arrays["evidence"] = np.zeros(count)
        self._scalars.update(accepted=0.0, ess=0.0)

    def set_prior(self, prior_P: Array) -> None:
        """Cold-start difficulties, for prompts whose rollouts say nothing."""
        self._arrays["prior"] = check_rates(prior_P, self.count, "cold start").copy()
        self._combine()

    def observe(self, outcome: Outcome) -> None:
        """Read the buffer, which has the step's rollouts by now."""
        self._read(outcome.step)

    def refresh(self, step: int, rng: np.random.Generator) -> int:
        """Read the rescored buffer as of this step."""
        self._read(step)
        return 0

    def evidence(self) -> Array:
        """ESS of each prompt's rollouts."""
        return self._arrays["evidence"].copy()

    def metrics(self) -> dict[str, float]:
        """Mean ESS of the buffered prompts and the share of them above tau."""
        return {"ess": self._scalars["ess"], "ess_accepted": self._scalars["accepted"]}

    def _read(self, step: int) -> None:
        buffer, plain = self._buffer, self._buffer.plain
        prompts, index = compact(buffer["prompt"][plain])
        reward = buffer["success"][plain].astype(np.float64)
        log_ratio = buffer.log_ratio[plain]
        unknown = np.isnan(log_ratio)
        # What was sampled in this very step comes from the policy of now: its ratio is 1.
        weighed = ~unknown | (buffer["step"][plain] == step)
        weight = weights(np.where(unknown, 0.0, log_ratio), self._config.clip) * weighed
        ess = effective_sample_size(weight, index, len(prompts))
        rate = snis_difficulty(weight, reward, index, len(prompts))
        accepted = ess >= self._config.ess_threshold
        below = np.full(len(prompts), np.nan)
        if self._config.below_threshold == "raw":
            below = snis_difficulty(np.ones(len(index)), reward, index, len(prompts))
        self._arrays["own"] = np.full(self.count, np.nan)
        self._arrays["own"][prompts] = np.where(accepted, rate, below)
        self._arrays["evidence"] = np.zeros(self.count)
        self._arrays["evidence"][prompts] = ess
        known = ess > 0
        self._scalars["ess"] = float(ess[known].mean()) if known.any() else 0.0
        self._scalars["accepted"] = float(accepted[known].mean()) if known.any() else 0.0
        self._combine()

    def _combine(self) -> None:
        own, prior = self._arrays["own"], self._arrays["prior"]
        self._arrays["difficulty"] = np.where(np.isnan(own), prior, own)
