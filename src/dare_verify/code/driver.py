"""Sent into the sandbox: loads the program, then calls its functions when the judge asks.

The program shares this process and may do to it what it likes: it would only change its own
answers. No expected value is ever here, and the arguments of a call arrive when it is made.
"""

from __future__ import annotations

import builtins
import enum
import importlib
import json
import linecache
import marshal
import os
import signal
import sys
import types

from dare_verify.code.wire import Channel, Unsupported, dump, load, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_MUTABLE = {list, dict, set, bytearray}


class Program:
    """The loaded program and those of its objects that the judge has a number for."""

    def __init__(self, hold: bool) -> None:
        self.module = types.ModuleType("solution")
        sys.modules["solution"] = self.module  # dataclasses and pickle look for it there
        self._hold = hold
        self._held: list[Any] = []

    def load(self, source: str, name: str) -> None:
        """Run the text of the program."""
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), self.module.__dict__)

    def answer(self, do: str, target: list[Any], *rest: Any) -> bytes:
        """Carry out one request."""
        if do == "call":
            args, kwargs = rest
            value = self.find(target)(*args, **kwargs)
            if value is None and self._hold and any(type(arg) in _MUTABLE for arg in args):
                return b"~" + dump(args, self._keep).encode()  # it may have worked in place
        elif do == "set":
            setattr(self.find(target), *rest)
            value = None
        elif do == "is":
            value = isinstance(rest[0], self.find(target))
        else:
            value = self.find(target)
        return b"=" + dump(value, self._keep).encode()

    def link(self, target: list[Any]) -> Any:
        """What the test code passes that is not plain data: an own object, or a function."""
        if target[0] is not None:
            return self.find(target)
        code, names = target[1:]
        if not code:
            return getattr(builtins, names[0])
        space: dict[str, Any] = {name: importlib.import_module(name) for name in names}
        return types.FunctionType(marshal.loads(bytes.fromhex(code)), space)

    def find(self, target: list[Any]) -> Any:
        """What a target means: a name or the number of a held object, then attribute names.

        A name may also be `Class().method` or `Class.method`.
        """
        root, *path = target
        if isinstance(root, int):
            found = self._held[root]
        else:
            head, *more = root.split(".")
            found = self._called(self._global(head.removesuffix("()")), head)
            path = more + path
        for name in path:
            found = self._called(_method(found, name.removesuffix("()")), name)
        return found

    def _global(self, name: str) -> Any:
        space = self.module.__dict__
        if name in space and name != "__builtins__":
            return space[name]
        solution = space.get("Solution")
        if isinstance(solution, type) and hasattr(solution, name):
            return _method(solution, name)
        raise NameError(f"name {name!r} is not defined")

    @staticmethod
    def _called(found: Any, written: str) -> Any:
        return found() if written.endswith("()") else found

    def _keep(self, value: Any) -> Any:
        if not self._hold:
            return _bare(value)
        for place, held in enumerate(self._held):
            if held is value:
                return {"o": [place]}
        self._held.append(value)
        return {"o": [len(self._held) - 1]}


def _bare(value: Any) -> Any:
    """The number or text that an enumeration's member is, whatever it says of itself."""
    if isinstance(value, enum.Enum) and isinstance(value, (int, str)):
        return int.__add__(value, 0) if isinstance(value, int) else str.__str__(value)
    return refuse(value)


def _method(owner: Any, name: str) -> Any:
    """An attribute; of a class, a method is that of a new instance."""
    found = getattr(owner, name)
    if not (isinstance(owner, type) and isinstance(found, types.FunctionType)):
        return found
    static = any(isinstance(vars(kind).get(name), staticmethod) for kind in owner.__mro__)
    return found if static else getattr(owner(), name)


def failure(error: BaseException) -> bytes:
    """An exception: the names of its classes, most special first, and its message."""
    if isinstance(error, Unsupported):
        return b"?" + dump(str(error)).encode()
    sys.__excepthook__(type(error), error, error.__traceback__)
    names = [kind.__name__ for kind in type(error).__mro__]
    try:
        said = str(error)[:1000]
    except Exception:
        said = ""
    return b"!" + dump([names, said]).encode()


def serve() -> None:
    """Load the program, say so, then answer until the judge hangs up."""
    channel = Channel()
    sys.set_int_max_str_digits(0)
    prelude, source, many, limit_s = json.loads(channel.receive())
    program = Program(many)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        program.load(prelude, "<prelude>")
        program.load(source, "<program>")
    except BaseException as error:
        channel.send(failure(error))
        os._exit(1)
    channel.send(b"+")
    while True:
        request = channel.receive()
        # Kills an honest program that loops. One that stops the timer has the sandbox's limit.
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        try:
            reply = program.answer(*load(request, program.link))
        except BaseException as error:
            reply = failure(error)
        channel.send(reply)


if __name__ == "__main__":
    serve()
