"""A program in its sandbox, whose functions can be called from outside."""

from __future__ import annotations

import json
import time

from dare.rewards.code.replies import raised
from dare.rewards.code.rules import MANY_CALLS, REPLY_BYTES, Rules
from dare.rewards.code.session import HungUp, Late, Session, TooLong, payload
from dare.rewards.code.trial import died, trial
from dare.rewards.code.verdict import Ruling, Trial
from dare.sandbox.base import Sandbox


class Stopped(Exception):
    """The program can say no more; its trial is over."""

    def __init__(self, outcome: Trial) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class Candidate:
    """The program's process. The judge's clock runs only while it waits for an answer.

    With `many`, it is there for many calls, which together have several times the limit of one;
    objects that are not plain data then stay inside and are spoken of by number.
    """

    def __init__(
        self, sandbox: Sandbox, rules: Rules, *, many: bool = False, waiting_s: float = 0.0
    ) -> None:
        times = MANY_CALLS if many else 1
        self._many, self._rules, self._left_s = many, rules, times * rules.wall_s
        limits = rules.limits(times, waiting_s)
        self._session = Session(sandbox, payload("wire", "driver"), limits)

    def load(self, program: str, prelude: str) -> None:
        """Run the program's text; raises Stopped where that fails."""
        reply = self.ask(
            json.dumps([prelude, program, self._many, self._rules.time_limit_s]).encode()
        )
        if reply[:1] != b"+":
            raise Stopped(self.stop(*raised(reply)))

    def ask(self, request: bytes, longest: int = REPLY_BYTES) -> bytes:
        """Send a request and wait for the answer, which may be a forgery; raises Stopped."""
        began = time.monotonic()
        patience_s = min(self._left_s, self._rules.wall_s)
        try:
            self._session.send(request, max(patience_s, 1.0))
            reply = self._session.receive(patience_s - (time.monotonic() - began), longest)
        except HungUp:
            raise Stopped(died(self._session.end(kill=False))) from None
        except Late:
            raise Stopped(self.stop(Ruling.TIME_LIMIT, "no answer in time")) from None
        except TooLong:
            raise Stopped(self.stop(Ruling.OUTPUT_LIMIT, "an answer that is too long")) from None
        self._left_s -= time.monotonic() - began
        return reply

    def stop(self, ruling: Ruling, message: str = "") -> Trial:
        """End the process; what the judge says of it, unless the sandbox itself failed."""
        return trial(ruling, self._session.end(), message)

    def __enter__(self) -> Candidate:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.end()
