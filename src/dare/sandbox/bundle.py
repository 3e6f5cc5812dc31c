"""The code that is sent to a bare interpreter, and the line that receives it."""

from __future__ import annotations

import functools
import marshal
from importlib import resources

# Each is loaded after those it imports; the last is run.
KEEPER = ("calls", "paths", "usage", "sweep", "keeper")
ZYGOTE = (
    *("calls", "paths", "syscalls", "seccomp", "rlimits", "usage", "sweep", "landlock", "program"),
    *("begin", "supervise", "namespaces", "places", "locks", "confined", "preload", "zygote"),
)

_LOADER = """
import sys as _sys
from types import ModuleType as _Module
for _name in ("dare", "dare.sandbox", "dare.sandbox.inside"):
    _module = _sys.modules[_name] = _Module(_name)
    _module.__path__ = []
for _name, _code in modules:
    _module = _sys.modules["dare.sandbox.inside." + _name] = _Module("dare.sandbox.inside." + _name)
    exec(_code, _module.__dict__)
    setattr(_sys.modules["dare.sandbox.inside"], _name, _module)
_entry = _module.main
for _name in [_name for _name in _sys.modules if _name.split(".")[0] == "dare"]:
    del _sys.modules[_name]
_entry(descriptor, config)
"""


@functools.cache
def _compiled(names: tuple[str, ...]) -> tuple[tuple[str, object], ...]:
    folder = resources.files("dare.sandbox.inside")
    return tuple(
        (name, compile((folder / f"{name}.py").read_text("utf-8"), f"<sandbox {name}>", "exec"))
        for name in names
    )


def boot(descriptor: int) -> str:
    """The program text for `python -c`: it reads the rest from a socket, in one packet."""
    return (
        f"import os, marshal; _ = marshal.loads(os.read({descriptor}, 1 << 20)); "
        f"exec(_.pop('loader'), dict(_, descriptor={descriptor}))"
    )


def packet(modules: tuple[str, ...], config: dict[str, object]) -> bytes:
    """What `boot` reads; the `main` of the last module is given the configuration."""
    loader = compile(_LOADER, "<sandbox>", "exec")
    return marshal.dumps({"loader": loader, "modules": _compiled(modules), "config": config})
