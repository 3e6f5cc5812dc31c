"""The worker process of the math verifier: `python -m dare_verify.math.worker`."""

from __future__ import annotations

import sys
from typing import Any

from dare_verify.pool import Handler, serve

WARM = (
    (r"\int_0^1 x\,dx", r"\frac{1}{2}"),
    (r"\gcd(m,n) + \frac{a}{b}", r"\gcd(m,n) + \frac{a}{b} + 1"),
    (r"\sum_{k=1}^{n} k = \sqrt{2}", r"\sum_{k=1}^{n} k + 1 = \sqrt{2}"),
    (r"(2n-1)!!", r"\lim_{x \to 0} \sin(x)"),
    (r"n(n-1)! + \ln \sin n", r"n! + \ln \sin n"),  # Bernoulli numbers and constants
    (r"\text{cis}(60^\circ)", r"\operatorname{cis} 60^\circ"),
)


def load() -> Handler:
    """Import what is slow to import, once for all workers; compare what they are sent."""
    from dare_verify.math.judge import thorough
    from dare_verify.math.symbolic import GoldUnread, Symbolic, parses

    sys.setrecursionlimit(10_000)  # a sum of a thousand terms is a tree as deep
    decide = Symbolic()
    for gold, answer in WARM:
        thorough(gold, answer, decide)  # math-verify's parser builds its tables on first use

    def handle(request: dict[str, Any]) -> Any:
        if "answer" not in request:
            return parses(request["gold"])
        try:
            return thorough(request["gold"], request["answer"], decide)
        except GoldUnread:
            return None

    return handle


if __name__ == "__main__":
    serve(load)
