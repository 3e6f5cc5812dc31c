"""Sent into a sandbox that has no channel: one call, answered on standard output behind a mark.

The program could print such an answer itself, but that is no better than returning it.
"""

from __future__ import annotations

import json
import os
import sys

from dare_verify.code.driver import Program, failure
from dare_verify.code.wire import load


def main() -> None:
    """Load the program, make the call and say what came of it."""
    mark, prelude, source, request = json.loads(sys.stdin.buffer.read())
    output = os.dup(1)
    sys.set_int_max_str_digits(0)
    program = Program(hold=False)
    try:
        program.load(prelude, "<prelude>")
        program.load(source, "<program>")
        reply = program.answer(*load(request))
    except BaseException as error:
        reply = failure(error)
    try:
        sys.stdout.flush()
    finally:
        rest = b"\n" + mark.encode() + reply + b"\n"
        while rest:
            rest = rest[os.write(output, rest) :]
        os._exit(0)


if __name__ == "__main__":
    main()
