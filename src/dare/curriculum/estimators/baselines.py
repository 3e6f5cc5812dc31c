"""Estimators to compare with: no estimate, averages, MoPPS, an oracle, EDCO, a judge, DOTS."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from dare.curriculum.arrays import Array, compact
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.coldstart import check_embeddings, choose_references
from dare.curriculum.estimators.base import Estimator, Measure, candidates, measured
from dare.curriculum.rollouts import Outcome
from dare.errors import require


class Baseline(Estimator):
    """None of these reads log-probs, and unseen prompts have a rule of their own."""

    scores = "none"
    uses_prior = False


class UniformEstimator(Baseline):
    """Difficulty 0.5 for every prompt, whatever happens (METHOD 9, random)."""


class PreviousEstimator(Baseline):
    """SNIS with every weight 1: drift is ignored; 0.5 when unseen (METHOD 9)."""

    def __init__(self, count: int, buffer: RolloutBuffer) -> None:
        super().__init__(count)
        self._buffer = buffer

    def observe(self, outcome: Outcome) -> None:
        """Re-read the buffer; a prompt that has left it is unseen again."""
        plain = self._buffer.plain
        prompts, inverse = compact(self._buffer["prompt"][plain])
        failure = 1.0 - self._buffer["success"][plain].astype(np.float64)
        count = np.bincount(inverse, minlength=len(prompts))
        self._arrays["difficulty"] = np.full(self.count, 0.5)
        rate = np.bincount(inverse, weights=failure, minlength=len(prompts)) / count
        self._arrays["difficulty"][prompts] = rate


class PosteriorEstimator(Baseline):
    """Beta(1, 1) prior; at each visit with s successes in k rollouts (METHOD 9)

    alpha <- discount alpha + (1 - discount) + s,   beta <- discount beta + (1 - discount) + k - s.
    """

    def __init__(self, count: int, discount: float) -> None:
        super().__init__(count)
        self._discount = discount
        self._arrays["alpha"] = np.ones(count)
        self._arrays["beta"] = np.ones(count)

    def observe(self, outcome: Outcome) -> None:
        """The update above; other prompts keep their posterior."""
        rows, keep = outcome.prompt_Q, self._discount
        alpha, beta = self._arrays["alpha"], self._arrays["beta"]
        alpha[rows] = keep * alpha[rows] + (1 - keep) + outcome.trials_Q - outcome.failures_Q
        beta[rows] = keep * beta[rows] + (1 - keep) + outcome.failures_Q
        self._arrays["difficulty"][rows] = beta[rows] / (alpha[rows] + beta[rows])

    def sample(self, rng: np.random.Generator) -> Array:
        """1 - gamma with gamma ~ Beta(alpha, beta): the Thompson draw."""
        draw = rng.random(self.count)  # Beta(1, 1), where nothing is known
        alpha, beta = self._arrays["alpha"], self._arrays["beta"]
        known = np.flatnonzero(alpha + beta != 2.0)
        draw[known] = 1.0 - rng.beta(alpha[known], beta[known])
        return draw

    def evidence(self) -> Array:
        """Rollouts that the posterior counts, less the prior's two."""
        counted: Array = self._arrays["alpha"] + self._arrays["beta"] - 2.0
        return counted


class CurrentEstimator(Baseline):
    """Rolls prompts out with the policy as it is until enough fall into [low, high].

    Each `probe` names prompts not yet tried in this step; after `max_probes` of them the step
    goes on with what qualified, so that a data set without medium prompts cannot hang a run.
    Subclasses say otherwise which groups qualify, how many prompts a probe has and which ones.
    """

    def __init__(self, count: int, low: float, high: float, wanted: int, max_probes: int) -> None:
        super().__init__(count)
        self._low, self._high = low, high
        self._wanted, self._max_probes = wanted, max_probes
        self._arrays["measured_step"] = np.full(count, -1, np.int64)
        self._scalars.update(step=-1, probes=0)

    def qualifies(self, rate: Array) -> Array:
        """Which failure rates of a fresh group make it worth training on."""
        return (rate >= self._low) & (rate <= self._high)

    def probe_size(self, missing: int) -> int:
        """Prompts of the next probe, where so many groups are missing."""
        return self._wanted

    def choose(self, untried: Array, size: int, rng: np.random.Generator) -> Array:
        """At most `size` of the untried rows. Calls before `observe` must give the same."""
        return rng.choice(untried, size=min(size, len(untried)), replace=False)

    def begin_step(self, step: int) -> None:
        """The first call of a step, before any of its probes."""
        self._scalars.update(step=step, probes=0)

    def probe(self, step: int, rng: np.random.Generator) -> Array | None:
        """Untried prompts, until enough qualify."""
        if self._scalars["step"] != step:
            self.begin_step(step)
        untried = np.flatnonzero(self._arrays["measured_step"] != step)
        missing = self._wanted - len(self.keep(step))
        if missing <= 0 or not len(untried) or self._scalars["probes"] >= self._max_probes:
            return None
        return np.sort(self.choose(untried, self.probe_size(missing), rng))

    def keep(self, step: int) -> Array:
        """Prompts measured in this step whose group qualifies."""
        fresh = np.flatnonzero(self._arrays["measured_step"] == step)
        return fresh[self.qualifies(self._arrays["difficulty"][fresh])]

    def observe(self, outcome: Outcome) -> None:
        """The newest group is the estimate, and the only one."""
        if outcome.step == self._scalars["step"]:
            self._scalars["probes"] += 1
        rows = outcome.prompt_Q
        self._arrays["difficulty"][rows] = outcome.failures_Q / outcome.trials_Q
        self._arrays["measured_step"][rows] = outcome.step


class EntropyEstimator(Baseline):
    """`measure(rows)` generates one prefix a prompt (64 tokens, T = 0.6) and answers with the mean
    token entropy of each. The selector sees the entropy itself, softmax(H / tau); as a failure
    rate it is read on the scale from the lowest to the highest entropy measured (METHOD 9).
    """

    needs = frozenset({"entropy"})
    generates = True

    def __init__(self, count: int, measure: Measure, limit: int = 0) -> None:
        super().__init__(count)
        self._measure, self._limit = measure, limit
        self._arrays["entropy"] = np.zeros(count)
        self._arrays["known"] = np.zeros(count, bool)

    def refresh(self, step: int, rng: np.random.Generator) -> int:
        """Measure all prompts, or a random part of them."""
        rows = candidates(self.count, self._limit, rng)
        values, tokens = measured(self._measure, rows, "entropy")
        proper = np.isfinite(values) & (values >= 0)
        require(proper.all(), "entropy", values[~proper][:1].tolist(), "must be finite and >= 0")
        entropy, known = self._arrays["entropy"], self._arrays["known"]
        entropy[rows], known[rows] = values, True
        # Unmeasured prompts must neither win nor lose the softmax: they take the mean.
        entropy[~known] = entropy[known].mean()
        low, high = entropy[known].min(), entropy[known].max()
        spread = high - low
        self._arrays["difficulty"] = (
            (entropy - low) / spread if spread > 0 else np.full(self.count, 0.5)
        )
        return tokens

    def signal(self) -> Array:
        """The mean token entropy of each prompt."""
        return self._arrays["entropy"]


INSTRUCTION = (
    "Estimate how likely you are to solve the following problem correctly. "
    "Answer with one number between 0 and 1: 0 means never, 1 means always."
)
_NUMBER = re.compile(r"(?<![\w.])(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w%]|\.\d)")
_MINUS = ("-", "\u2212")  # the second is what a model writes in formulas


class Replies(NamedTuple):
    """What the policy wrote, one text a prompt, and the tokens it took."""

    texts: Sequence[str]
    tokens: int


def parse_probability(text: str) -> float | None:
    """The first number in [0, 1] of the reply, or None."""
    for match in _NUMBER.finditer(text):
        before = text[match.start() - 1] if match.start() else ""
        value = float(match.group())
        if 0.0 <= value <= 1.0 and before not in _MINUS:
            return value
    return None


class JudgeEstimator(Baseline):
    """`ask(rows)` puts INSTRUCTION before each prompt and samples up to 32 tokens at T = 0.3.

    difficulty = 1 - the first number in [0, 1] of the reply, 0.5 where there is none (METHOD 9).
    """

    needs = frozenset({"ask"})
    generates = True

    def __init__(self, count: int, ask: Callable[[Array], Replies], limit: int = 0) -> None:
        super().__init__(count)
        self._ask, self._limit = ask, limit
        self._scalars.update(unparsed=0.0)

    def refresh(self, step: int, rng: np.random.Generator) -> int:
        """Ask about all prompts, or a random part of them."""
        rows = candidates(self.count, self._limit, rng)
        replies = self._ask(rows)
        fix = f"must answer each of {len(rows)} prompts"
        require(len(replies.texts) == len(rows), "judge replies", len(replies.texts), fix)
        parsed = [parse_probability(text) for text in replies.texts]
        self._scalars["unparsed"] = sum(value is None for value in parsed) / len(parsed)
        success = np.array([0.5 if value is None else value for value in parsed])
        self._arrays["difficulty"][rows] = 1.0 - success
        return int(replies.tokens)

    def metrics(self) -> dict[str, float]:
        """Share of replies without a usable number."""
        return {"judge_unparsed": float(self._scalars["unparsed"])}


class Teacher(Protocol):
    """Predicts the success of prompts from that of references, all by their embeddings."""

    def predict(self, queries_PH: Array, references_NH: Array, success_N: Array) -> Array:
        """One success rate a query."""

    def digest(self) -> str:
        """What tells it from another one."""


class TeacherEstimator(Baseline):
    """Every step a fresh reference set is rolled out; all other prompts are predicted (METHOD 9).

    References keep their measured failure rate, which is closer than the head's word on them.
    """

    needs = frozenset({"embeddings", "teacher"})

    def __init__(self, count: int, head: Teacher, embeddings: Any, references: int) -> None:
        super().__init__(count)
        self._head = head
        self._embeddings = check_embeddings(embeddings, count)
        self._references = references
        self._scalars.update(step=-1, head=head.digest())

    def probe(self, step: int, rng: np.random.Generator) -> Array | None:
        """The step's reference set, once."""
        if self._scalars["step"] == step:
            return None
        return choose_references(self.count, self._references, rng)

    def observe(self, outcome: Outcome) -> None:
        """Predict all prompts from the reference set; later groups of the step only refine it."""
        rows = outcome.prompt_Q
        if not len(rows):  # every reference unscored: the last prediction stands
            self._scalars["step"] = outcome.step
            return
        rate = outcome.failures_Q / outcome.trials_Q
        if self._scalars["step"] != outcome.step:
            success = self._head.predict(self._embeddings, self._embeddings[rows], 1.0 - rate)
            self._arrays["difficulty"] = 1.0 - np.asarray(success, dtype=np.float64)
            self._scalars["step"] = outcome.step
        self._arrays["difficulty"][rows] = rate

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore; the head itself is not part of the state, so it must be the same one."""
        then, now = state["scalars"].get("head"), self._head.digest()
        fix = f"the state was saved with another head ({then}); resume with the same file"
        require(then in (None, now), "estimator.teacher", now, fix)
        super().load_state_dict(state)
        self._scalars["head"] = now
