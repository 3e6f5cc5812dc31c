"""Sent into a second sandbox: runs the data set's test code against a program that is elsewhere.

The program's functions are stand-ins here: each call goes through the judge to the program's own
process, and plain data comes back. So the test code keeps its expected values to itself, and the
program has nothing to patch.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib
import json
import marshal
import os
import random
import symtable
import sys
import types

from dare_verify.code.wire import Channel, dump, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_RAISES = ("raises", "assertRaises", "assertRaisesRegex")
# Raised inside map(), next() or a generator, these would end a loop over assertions early.
_ENDINGS = {"StopIteration", "StopAsyncIteration", "GeneratorExit"}


class Remote:
    """Something of the program's. It can be called, read, set and passed back, but not compared."""

    __slots__ = ("_ask", "_target")

    def __init__(self, ask: Ask, target: list[Any]) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_target", target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Have the program call it."""
        return self._ask("call", self._target, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("get", [*self._target, name])

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", self._target, name, value)

    def __instancecheck__(self, value: Any) -> bool:
        """Whether it is of that class of the program's; plain data never is."""
        return isinstance(value, Remote) and self._ask("is", self._target, value) is True

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError("the program returned an object that is not plain data")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __len__ = _refuse
    __hash__ = __iter__ = __contains__ = __str__ = __repr__ = __format__ = _refuse


class Ask:
    """The line to the program."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.calls = 0
        self.raised: BaseException | None = None
        self.kinds: dict[str, type[Exception]] = {}  # stand-ins for exceptions of the program's own
        self.stuck = False

    def __call__(self, *request: Any) -> Any:
        """What the program answers; raises what it raises."""
        self._channel.send(b">" + dump(request, self._name).encode())
        self.calls += 1
        reply = self._channel.receive()
        body = load(reply[1:], lambda target: Remote(self, target))
        if reply[:1] == b"=":
            return body
        if reply[:1] == b"~":
            return _changed_in_place(request[2], body)
        if reply[:1] != b"!":
            raise TypeError(body)
        self.raised = error = _exception(self.kinds, *body)
        raise error

    def _name(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return {"o": value._target}
        name = getattr(value, "__name__", "")
        if getattr(builtins, name, None) is value:
            return {"o": [None, "", [name]]}
        if isinstance(value, types.FunctionType) and not (value.__closure__ or value.__defaults__):
            names = _globals_of(value.__code__) - set(dir(builtins))
            if names <= sys.stdlib_module_names:  # it stands alone, so it can go as it is
                return {"o": [None, marshal.dumps(value.__code__).hex(), sorted(names)]}
        self.stuck = True
        raise TypeError(f"the test passes a {type(value).__name__}, which is not plain data")


def _globals_of(code: types.CodeType) -> set[str]:
    """The global names that a function and those inside it use."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    own = {word.argval for word in dis.get_instructions(code) if "_GLOBAL" in word.opname}
    return own.union(*map(_globals_of, inner))


def _changed_in_place(args: tuple[Any, ...], now: Any) -> None:
    """Give the arguments of a call that returned None the contents that they have there."""
    for mine, theirs in zip(args, now, strict=True):
        if type(mine) in (list, bytearray) and isinstance(theirs, (list, bytes)):
            mine[:] = theirs
        elif type(mine) in (dict, set) and type(theirs) is type(mine):
            mine.clear()
            mine.update(theirs)


def _exception(kinds: dict[str, type[Exception]], names: list[str], said: str) -> BaseException:
    """The nearest builtin exception, which is also what the test code knows by the other names."""
    own = [kinds[name] for name in names if name in kinds]
    for name in names:
        kind = getattr(builtins, str(name), None)
        if name in _ENDINGS or not (isinstance(kind, type) and issubclass(kind, Exception)):
            continue
        try:
            return (type(names[0], (*own, kind), {}) if own else kind)(said)
        except TypeError:
            continue
    return RuntimeError(f"{names[0]}: {said}")


def _last_name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def caught(code: str) -> set[str]:
    """The names that the test code takes for exceptions."""
    found: set[str] = set()
    if "except" not in code and "aises" not in code:  # the usual case, and parsing is slow
        return found
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            found |= {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
        elif isinstance(node, ast.Call) and _last_name(node.func) in _RAISES:
            found |= {arg.id for arg in node.args[:1] if isinstance(arg, ast.Name)}
    return found


def names_of(code: str) -> tuple[set[str], set[str]]:
    """The global names that the test code uses, and those that it defines."""
    used, own, tables = set(), set(), [symtable.symtable(code, "<tests>", "exec")]
    for table in tables:
        tables += table.get_children()
        top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if top and (symbol.is_assigned() or symbol.is_imported()):
                own.add(symbol.get_name())
            if symbol.is_referenced() and (top or symbol.is_global()):
                used.add(symbol.get_name())
    return used, own


def prepare(
    ask: Ask, free: set[str], entry: str | None, helpers: str, errors: set[str]
) -> dict[str, Any]:
    """What the test code will see for the names that it uses but does not define.

    Modules of the standard library and builtins are the real ones, whatever the program calls its
    own things. Other names are the program's, unless the trusted `helpers` define them.
    """
    space: dict[str, Any] = {"__name__": "tests"}
    known = free & set(dir(builtins))
    modules = free & sys.stdlib_module_names
    # Without an entry point, the least likely names are the program's only if there are no others.
    theirs = free - known - modules or (set() if entry else modules or known)
    space.update({name: importlib.import_module(name) for name in modules - theirs})
    space.update({name: Remote(ask, [name]) for name in theirs})
    ask.kinds = {name: type(name, (Exception,), {}) for name in theirs & errors}
    space.update(ask.kinds)
    if entry and "candidate" in theirs:  # what HumanEval calls it
        space["candidate"] = Remote(ask, [entry])
    if helpers:
        trusted: dict[str, Any] = {"__name__": "helpers"}
        exec(compile(helpers, "<helpers>", "exec"), trusted)
        space.update({name: trusted[name] for name in free & trusted.keys() if name != entry})
    if entry and entry.isidentifier():
        space[entry] = Remote(ask, [entry])
    return space


def run(ask: Ask, code: str, entry: str | None, helpers: str) -> None:
    """Run the test code; it raises where the program fails it."""
    used, own = names_of(code)
    space = prepare(ask, used - own, entry, helpers, caught(code))
    exec(compile(code, "<tests>", "exec"), space)
    if entry and "check" in own - used:  # it is there to be called, and the code does not call it
        space["check"](Remote(ask, [entry]))


def line_of(error: BaseException) -> int:
    """The last line of the test code that the exception went through."""
    line, trace = 0, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == "<tests>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def main() -> None:
    """Receive the test code, run it and say how it went."""
    channel = Channel()
    ask = Ask(channel)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for test code that uses NumPy
    sys.set_int_max_str_digits(0)
    random.seed(0)  # test code that draws its inputs draws the same ones every time
    code, entry, helpers = json.loads(channel.receive())
    end = ["passed", ""]
    try:
        run(ask, code, entry, helpers)
    except BaseException as error:
        kind = "judge" if ask.stuck else "program" if error is ask.raised else "tests"
        end = [kind, f"line {line_of(error)} of the tests: {type(error).__name__}: {error}"[:1000]]
    channel.send(b"." + json.dumps(end).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
