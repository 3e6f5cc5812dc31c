"""Running a program's text as `__main__` in this process, and ending as Python would."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import io
import linecache
import os
import sys
import threading
import traceback
from types import ModuleType
from typing import Any, NoReturn

_FILE = "main.py"


def standard_streams() -> None:
    """Text streams on descriptors 0, 1 and 2, as a new interpreter would open them."""
    for name, mode, errors in (
        ("stdin", "r", "surrogateescape"),
        ("stdout", "w", "surrogateescape"),
        ("stderr", "w", "backslashreplace"),
    ):
        number = ("stdin", "stdout", "stderr").index(name)
        binary = open(number, f"{mode}b", closefd=False)  # noqa: SIM115
        binary.raw.name = f"<{name}>"  # type: ignore[attr-defined]
        newline = "\n" if mode == "w" else None
        stream = io.TextIOWrapper(binary, "utf-8", errors, newline, name == "stderr")
        stream.mode = mode  # type: ignore[misc]  # contest programs with fast input look at it
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _show(error: BaseException) -> None:
    """Print an uncaught exception without the sandbox's own frames."""
    shown = error.__traceback__ and error.__traceback__.tb_next
    if sys.excepthook is sys.__excepthook__:
        traceback.print_exception(type(error), error, shown)
    else:
        sys.excepthook(type(error), error, shown)


def _status(error: SystemExit) -> int:
    """The exit status that `sys.exit` asked for."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _finish(status: int) -> int:
    """Join threads, run exit functions and flush, without tearing the interpreter down."""
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        try:
            step()
        except SystemExit as error:
            status = _status(error)
        except BaseException:
            pass
    status = _flush(sys.stdout, status)  # its own stream may need its globals
    sys.modules["__main__"].__dict__.clear()  # destructors of the program's own objects
    gc.collect()
    status = _flush(sys.__stdout__, status)
    _flush(sys.stderr, status)
    return status


def _flush(stream: Any, status: int) -> int:
    """The exit status after a stream has been flushed."""
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except BaseException:
        return status or 120
    return status


def run(source: bytes) -> NoReturn:
    """Be that program."""
    leave = os._exit
    module = ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __file__=_FILE)
    sys.modules["__main__"] = module
    sys.argv = [""]
    text = source.decode("utf-8", "replace")
    linecache.cache[_FILE] = (len(text), None, text.splitlines(True), _FILE)  # there is no file
    status = 0
    try:
        exec(compile(source, _FILE, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as error:
        status = _status(error)
    except BaseException as error:
        status = 1
        with contextlib.suppress(BaseException):
            _show(error)
    try:
        status = _finish(status)
    finally:
        leave(status)
