r"""Is a mathematical answer right? True, False, or None where it could not be scored.

    from dare_verify.math import verify

    verify(r"... so the answer is \boxed{\frac{1}{2}}", "0.5")   # True

The last `\boxed{}` counts (without any box, what follows `####`). Text, exact arithmetic and
structure are compared in the calling process; what that leaves open goes to killable workers, which
evaluate to 100 digits and ask math-verify last. None means a time-out, a dead worker or a gold that
cannot be read; it never means wrong.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from dare_errors import require
from dare_verify.math.expression import Verdict
from dare_verify.math.extract import final_answer, gold_answer
from dare_verify.math.judge import quick, readable
from dare_verify.math.shape import shape
from dare_verify.pool import WorkerPool

__all__ = [
    "MathVerifier",
    "WorkerPool",
    "check_golds",
    "default",
    "final_answer",
    "math_reward",
    "stats",
    "verify",
    "verify_batch",
]

logger = logging.getLogger(__name__)

ALARM_SHARE = 0.005  # of unscored rows in the window
WINDOW = 1000
FEWEST = 200  # rows before the share says anything

Extract = Callable[[str], str | None]
Fault = Callable[[int], str | None]


class MathVerifier:
    """Decides what it can at once and sends the rest to killable workers."""

    def __init__(self, pool: WorkerPool | None = None) -> None:
        self.pool = pool or WorkerPool("dare_verify.math.worker")
        self.fault: Fault | None = None  # injected failures by row, for tests
        self._counts: Counter[str] = Counter()
        self._window: deque[bool] = deque(maxlen=WINDOW)
        self._lock = threading.Lock()

    def verify_batch(
        self,
        completions: Sequence[str],
        golds: Sequence[object],
        *,
        extract: Extract = final_answer,
        rows: Sequence[object] | None = None,
    ) -> list[Verdict]:
        """Right, wrong or unscored for every completion; `rows` name them in the log."""
        require(
            len(completions) == len(golds),
            "golds",
            len(golds),
            f"give one gold a completion, of which there are {len(completions)}",
        )
        verdicts: list[Verdict] = [None] * len(completions)
        reasons: dict[int, str] = {}
        open_pairs: dict[tuple[str, str, str | None], list[int]] = {}
        for row, (completion, gold) in enumerate(zip(completions, golds, strict=True)):
            fault = self.fault(row) if self.fault else None
            reference = gold_answer(gold)
            if reference is None:
                reasons[row] = "the gold holds no answer"
                continue
            answer = extract(completion) if isinstance(completion, str) else None
            if answer is None and not fault:
                verdicts[row] = False
                self._count("no answer")
                continue
            try:
                verdict, stage = (None, "") if fault else quick(reference, answer or "")
            except Exception as error:  # a bug of ours must not pass for a wrong answer
                reasons[row] = f"{type(error).__name__}: {error}"
                continue
            if stage == "gold too large":
                reasons[row] = "the gold is too large to compare with"
            elif verdict is None:
                open_pairs.setdefault((reference, answer or "", fault), []).append(row)
            else:
                verdicts[row] = verdict
                self._count(stage)
        self._work(open_pairs, verdicts, reasons)
        self._report(len(completions), reasons, rows)
        return verdicts

    def _work(
        self,
        pairs: dict[tuple[str, str, str | None], list[int]],
        verdicts: list[Verdict],
        reasons: dict[int, str],
    ) -> None:
        """Equal pairs, as the rollouts of one prompt often are, are compared once."""
        items = [
            {"gold": gold, "answer": answer} | ({"fault": fault} if fault else {})
            for gold, answer, fault in pairs
        ]
        for reply, rows in zip(self.pool.run(items), pairs.values(), strict=True):
            for row in rows:
                verdicts[row] = reply.value if reply.status == "ok" else None
                if reply.status != "ok":
                    reasons[row] = reply.status if reply.value is None else str(reply.value)
                elif reply.value is None:
                    reasons[row] = "the gold is not understood"
                else:
                    self._count("worker")

    def _count(self, stage: str) -> None:
        self._counts[stage] += 1

    def _report(self, total: int, reasons: dict[int, str], names: Sequence[object] | None) -> None:
        with self._lock:
            self._counts["rows"] += total
            self._counts["unscored"] += len(reasons)
            self._window.extend([True] * len(reasons) + [False] * (total - len(reasons)))
            seen, bad = len(self._window), sum(self._window)
            alarm = bool(reasons) and seen >= FEWEST and bad > ALARM_SHARE * seen
        for row, reason in sorted(reasons.items()):
            logger.warning("row %s is unscored: %s", names[row] if names else row, reason)
        if alarm:
            logger.warning(
                "%d of the last %d rows (%.1f %%) are unscored, more than %.1f %%: "
                "look at the golds and the load of this machine",
                bad, seen, 100 * bad / seen, 100 * ALARM_SHARE,
            )  # fmt: skip

    def stats(self) -> dict[str, int]:
        """Rows by the stage that decided them, unscored rows, and the pool's own counts."""
        pool = {f"pool {name}": count for name, count in self.pool.counts.items()}
        return dict(self._counts) | pool

    def check_golds(self, golds: Sequence[object], *, deep: bool = False) -> list[tuple[int, str]]:
        """Rows whose gold does not verify against itself in a box, with the reason.

        `deep` also names those that only an identical text can match, because neither the exact
        reader nor math-verify understands them.
        """
        texts = [gold_answer(gold) for gold in golds]
        found: dict[int, str] = {}
        for row, text in enumerate(texts):
            if text is None:
                found[row] = "no answer in it"
            elif final_answer(rf"\boxed{{{text}}}") is None or not quick(text, text)[0]:
                found[row] = "empty, or its braces are not balanced"
        if deep:
            unread = {
                row: text
                for row, text in enumerate(texts)
                if row not in found and text is not None and not readable(shape(text))
            }
            items = [{"gold": text} for text in unread.values()]
            for row, reply in zip(unread, self.pool.run(items), strict=True):
                if reply.status != "ok":
                    found[row] = f"could not be checked: {reply.status}"
                elif reply.value is not True:
                    found[row] = "only an identical text will match it"
        return sorted(found.items())


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


default = MathVerifier()


def verify(completion: str, gold: object) -> bool | None:
    """Is the completion's final answer the gold? None where it could not be scored."""
    return default.verify_batch([completion], [gold])[0]


def verify_batch(
    completions: Sequence[str], golds: Sequence[object], *, rows: Sequence[object] | None = None
) -> list[bool | None]:
    """`verify` for many at once; `rows` are the names by which the log calls them."""
    return default.verify_batch(completions, golds, rows=rows)


def check_golds(golds: Sequence[object], *, deep: bool = False) -> list[tuple[int, str]]:
    """(row, reason) for every gold that does not verify against itself; see `MathVerifier`."""
    return default.check_golds(golds, deep=deep)


def stats() -> dict[str, int]:
    """Counts since the start: rows by the stage that decided them, and the workers' failures."""
    return default.stats()


def math_reward(
    completions: Sequence[Any], answer: Sequence[Any] | None = None, **columns: Any
) -> list[float | None]:
    """1.0 right, 0.0 wrong, None unscored, by the last box of each completion.

    The gold is the column `answer`, or `solution`, `gold`, `ground_truth` or `target`.
    """
    return reward(default, completions, golds_of(answer, columns))
