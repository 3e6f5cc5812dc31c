"""A simulated policy: succeeds by skill less hardness, improves by the policy gradient.

A rollout is three independent draws, all with an exact likelihood: an outcome, Bernoulli with
log-odds skill - hardness; a length, log-normal on a grid of units; a style, normal, which changes
nothing but the likelihood ratios. A response cut by its token budget fails undecided. `learn`
ascends the clipped objective of METHOD 8 by the score functions of outcome and length, so a group
without reward variance teaches no skill, and a replayed rollout counts by its likelihood ratio.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, keyed_rng, offsets_of
from dare.curriculum.batch import TrainBatch
from dare.curriculum.buffer import ScoreRequest
from dare.curriculum.estimators.build import Services
from dare.curriculum.plan import StepPlan
from dare.curriculum.prompts import PromptTable
from dare.curriculum.rollouts import Conditioning, Finish, RolloutBatch
from dare_hints import hint
from simulated.population import UNITS, Population, World

_UNIT = np.arange(2, UNITS + 1)
_LOG_UNIT = np.log(_UNIT)
_LONGER = np.log(1.25)  # what a request to think longer adds to the log-length
_ANSWER = "7041"
_SOLUTION = "Since the sum is fixed, x + y = z, therefore x = z - y."


class SimulatedLearner:
    """Prompts and a policy in one. The state is `skill_S`, `verbosity_S` and `style_T`."""

    def __init__(self, prompts: int, **dials: Any) -> None:
        self.world = World(prompts=prompts, **dials)
        self.population = Population(self.world)
        self.skill_S = np.zeros(self.population.size)
        self.verbosity_S = np.zeros(self.population.size)
        self.style_T = np.zeros(self.world.skills)
        self.updates = 0
        self._heldout = prompts + np.arange(self.world.heldout)

    def table(self) -> PromptTable:
        """The training prompts; all share one answer, which is what allows hints."""
        table = PromptTable.from_keys(np.arange(self.world.prompts, dtype=np.uint64))
        return dataclasses.replace(table, answers=(_ANSWER,) * self.world.prompts)

    def embeddings(self, noise: float = 3.0, dimension: int = 32) -> Array:
        """Features for the cold start, the less informative the more `noise` (in log-odds)."""
        return self.population.embeddings(noise, dimension)

    def services(self, embeddings: bool = True) -> Services:
        """What a curriculum needs of a model."""
        features = self.embeddings() if embeddings else None
        return Services(decode=lambda tokens: _SOLUTION, hint=hint, embeddings=features)

    def true_difficulty(self, rows: Any = None) -> Array:
        """Failure rate of the policy as it is now, plain and uncut."""
        rows = np.arange(self.world.prompts) if rows is None else np.asarray(rows)
        return 1.0 / (1.0 + np.exp(self._log_odds(rows)))

    def accuracy(self) -> float:
        """Mean success over the held-out prompts."""
        return 1.0 - float(self.true_difficulty(self._heldout).mean())

    def mean_length(self) -> float:
        """Mean length over the held-out prompts, in units."""
        log_mass = self._log_length(self._heldout, np.zeros(len(self._heldout), np.uint8))
        return float((np.exp(log_mass) @ _UNIT).mean())

    def generate(self, plan: StepPlan, step: int) -> RolloutBatch:
        """Rollouts of a plan, with rewards; the draw is keyed by (seed, step, plan)."""
        wanted = plan.rows()
        prompt, conditioning = wanted["prompt"].astype(np.int64), wanted["conditioning"]
        purpose = f"rollouts {plan.kind} {zlib.crc32(plan.prompt_P.tobytes())}"
        rng = keyed_rng(self.world.seed, step, purpose)
        odds = self._log_odds(prompt, conditioning)
        right = rng.random(len(prompt)) < 1.0 / (1.0 + np.exp(-odds))
        mass = np.exp(self._log_length(prompt, conditioning))
        place = (np.cumsum(mass, axis=1) < rng.random((len(prompt), 1))).sum(axis=1)
        length = _UNIT[np.minimum(place, len(_UNIT) - 1)]
        budget = np.maximum(wanted["max_tokens"] * UNITS // self.world.max_tokens, 2)
        cut = length > budget
        length = np.minimum(length, budget)
        style = self.style_T[self.population.topic[prompt]] + rng.standard_normal(len(prompt))
        offsets = offsets_of(length)
        tokens = np.zeros(int(offsets[-1]), np.int32)
        # The style travels as the bits of the first token.
        tokens[offsets[:-1]] = style.astype(np.float32).view(np.int32)
        batch = RolloutBatch(
            prompt_R=prompt,
            tokens=tokens,
            logprobs=np.zeros(len(tokens), np.float32),
            offsets=offsets,
            total_logprob_R=np.zeros(len(prompt)),
            reward_R=(right & ~cut).astype(np.float32),
            conditioning_R=conditioning,
            finish_R=np.where(cut, Finish.LENGTH, Finish.STOP).astype(np.uint8),
        )
        outcome, size, look = self._logprobs(batch, conditioning)
        # Slot 0 is the token that decides the outcome, slot 1 the one that decides the length:
        # the objective clips token by token.
        batch.logprobs[offsets[:-1]] = outcome
        batch.logprobs[offsets[:-1] + 1] = size
        return dataclasses.replace(batch, total_logprob_R=outcome + size + look)

    def score(self, request: ScoreRequest | RolloutBatch) -> Array:
        """Total log-prob of each rollout under the policy of now."""
        batch = request.rollouts if isinstance(request, ScoreRequest) else request
        outcome, size, look = self._logprobs(batch, batch.conditioning_R)
        total: Array = outcome + size + look
        return total

    def learn(self, batch: TrainBatch) -> None:
        """One step up the clipped objective."""
        rollouts, world = batch.rollouts, self.world
        prompt = rollouts.prompt_R
        shown = rollouts.conditioning_R
        if world.hint_training == "original":
            shown = np.where(shown == Conditioning.HINTED, Conditioning.PLAIN, shown)
        outcome, size, _ = self._logprobs(rollouts, shown)
        old = rollouts.logprobs[rollouts.offsets[:-1]], rollouts.logprobs[rollouts.offsets[:-1] + 1]
        chance = 1.0 / (1.0 + np.exp(-self._log_odds(prompt, shown)))
        cut = rollouts.finish_R == Finish.LENGTH
        lean = np.where(cut, 0.0, rollouts.reward_R - chance)
        stretch = self._length_score(rollouts, shown)
        index, share = self.population.mix(prompt)
        ascent_skill = _gradient(batch, outcome - old[0])[:, None] * lean[:, None] * share
        ascent_length = _gradient(batch, size - old[1])[:, None] * stretch[:, None] * share
        count = self.population.size
        step = world.rate * np.bincount(index.ravel(), ascent_skill.ravel(), count)
        if world.ceiling is not None:
            room = np.maximum(0.0, 1.0 - self.skill_S / world.ceiling)
            step = np.where(step > 0, step * room, step)
        self.skill_S += step
        self.verbosity_S += world.length_rate * np.bincount(
            index.ravel(), ascent_length.ravel(), count
        )
        rng = keyed_rng(world.seed, self.updates, "style")
        self.style_T += world.drift * rng.standard_normal(world.skills)
        self.updates += 1

    def _log_odds(self, rows: Array, conditioning: Array | None = None) -> Array:
        index, share = self.population.mix(rows)
        odds: Array = (self.skill_S[index] * share).sum(axis=1) - self.population.hardness[rows]
        if conditioning is not None:
            boost = np.array([0.0, self.world.think_boost, self.world.hint_boost])
            odds += boost[conditioning]
        return odds

    def _log_length(self, rows: Array, conditioning: Array) -> Array:
        """Log-probability of each length on the grid: R x (UNITS - 1)."""
        world, (index, share) = self.world, self.population.mix(rows)
        centre = np.log(world.length) + (self.verbosity_S[index] * share).sum(axis=1)
        centre += world.length_slope * np.clip(self.population.hardness[rows], -6.0, 6.0)
        centre += _LONGER * (conditioning == Conditioning.THINK_LONGER)
        distance = (_LOG_UNIT - centre[:, None]) / world.length_spread
        log_mass = -0.5 * distance**2 - _LOG_UNIT
        top = log_mass.max(axis=1, keepdims=True)
        mass: Array = log_mass - top - np.log(np.exp(log_mass - top).sum(axis=1, keepdims=True))
        return mass

    def _logprobs(self, batch: RolloutBatch, conditioning: Array) -> tuple[Array, Array, Array]:
        """Log-probs of outcome, length and style (up to a constant) of each rollout."""
        prompt, length = batch.prompt_R, batch.length_R
        cut = batch.finish_R == Finish.LENGTH
        odds = self._log_odds(prompt, conditioning)
        outcome = np.where(cut, 0.0, -np.logaddexp(0.0, np.where(batch.reward_R > 0, -odds, odds)))
        mass = np.exp(self._log_length(prompt, conditioning))
        met = np.where(cut[:, None], length[:, None] < _UNIT, length[:, None] == _UNIT)
        size = np.log((mass * met).sum(axis=1))
        style = np.ascontiguousarray(batch.tokens[batch.offsets[:-1]]).view(np.float32)
        look = -0.5 * (style.astype(np.float64) - self.style_T[self.population.topic[prompt]]) ** 2
        return outcome, size, look

    def _length_score(self, batch: RolloutBatch, conditioning: Array) -> Array:
        """d log p(length) / d centre; of a cut response, that of being longer than its budget."""
        mass = np.exp(self._log_length(batch.prompt_R, conditioning))
        length, cut = batch.length_R, batch.finish_R == Finish.LENGTH
        met = mass * np.where(cut[:, None], length[:, None] < _UNIT, length[:, None] == _UNIT)
        here = (met @ _LOG_UNIT) / met.sum(axis=1)
        score: Array = (here - mass @ _LOG_UNIT) / self.world.length_spread**2
        return score


def _gradient(batch: TrainBatch, log_ratio: Array) -> Array:
    """d objective / d log p of each rollout: weight x ratio x advantage, 0 where it is clipped."""
    ratio = np.exp(log_ratio)
    gain = batch.advantage_R
    high = (gain > 0) & (ratio > 1.0 + batch.clip_high_R)
    low = (gain < 0) & (ratio < 1.0 - batch.clip_low_R)
    weight: Array = np.where(high | low, 0.0, batch.weight_R * ratio * gain)
    return weight
