"""The verifier as a reward function with TRL's signature: lists in, one number a completion out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dare.errors import require
from dare.rewards.math.extract import final_answer
from dare.rewards.math.kleene import Verdict
from dare.rewards.math.service import Extract, MathVerifier

GOLD_COLUMNS = ("answer", "solution", "gold", "ground_truth", "target")


def text_of(completion: Any) -> str:
    """A completion's text: itself, or the content of its last message."""
    if isinstance(completion, str):
        return completion
    content = completion[-1]["content"] if completion else ""
    if isinstance(content, list):  # parts of a multimodal message
        content = "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def golds_of(answer: Sequence[Any] | None, columns: dict[str, Any]) -> Sequence[Any]:
    """The column that holds the gold: `answer`, or else the first known name there is."""
    named = {"answer": answer, **columns}
    name = next((name for name in GOLD_COLUMNS if named.get(name) is not None), None)
    require(
        name, "columns", sorted(columns), f"one of {', '.join(GOLD_COLUMNS)} must hold the gold"
    )
    return named[name or "answer"]


def reward(
    verifier: MathVerifier,
    completions: Sequence[Any],
    golds: Sequence[Any],
    extract: Extract = final_answer,
) -> list[float | None]:
    """1.0 right, 0.0 wrong, None unscored: a row that no gradient should come from."""
    verdicts: list[Verdict] = verifier.verify_batch(
        [text_of(completion) for completion in completions], golds, extract=extract
    )
    return [None if verdict is None else float(verdict) for verdict in verdicts]
