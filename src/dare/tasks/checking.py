r"""Was the problem solved? The last \boxed{} decides, nothing else in the text does."""

from dare.rewards.builtin import last_boxed, matches


def reward(completion: str, answer: str | int) -> float:
    """1.0 when the last box holds exactly the integer `answer`, otherwise 0.0.

    Blanks around the number and leading zeros do not matter; words, units or a second number do.
    A last box that is never closed is no answer: a response that was cut off has none.
    """
    inside = last_boxed(completion)
    return float(inside is not None and matches(inside, str(answer)))
