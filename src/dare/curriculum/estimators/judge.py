"""LLM-judge: the policy is asked how likely it is to solve the prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.estimators.base import Estimator, candidates
from dare.errors import require

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


class JudgeEstimator(Estimator):
    """`ask(rows)` puts INSTRUCTION before each prompt and samples up to 32 tokens at T = 0.3.

    difficulty = 1 - the first number in [0, 1] of the reply, 0.5 where there is none (METHOD 9).
    """

    scores = "none"
    uses_prior = False

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
