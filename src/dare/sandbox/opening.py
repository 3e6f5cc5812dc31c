"""Choosing a sandbox by trying it: one that does not hold is never used."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import threading

from dare.errors import InvalidInput, suggest
from dare.sandbox import bwrap, landlock
from dare.sandbox.base import Sandbox
from dare.sandbox.local import LocalSandbox
from dare.sandbox.probing import examine
from dare.sandbox.remote import RemoteSandbox

DANGER = "DARE_DANGEROUSLY_RUN_WITHOUT_SANDBOX"
_LOCAL = {"bwrap": bwrap.RECIPE, "landlock": landlock.RECIPE}
_LOG = logging.getLogger(__name__)

_lock = threading.RLock()
_open: dict[str, LocalSandbox | RemoteSandbox] = {}
_faults: dict[str, str | None] = {}


def open_sandbox(name: str = "auto", *, dangerous: bool = False) -> Sandbox:
    """The sandbox of that name, shared by the whole process and tried before its first use.

    `auto` takes the first of `bwrap` and `landlock` that holds. `remote:URL` (or just the URL) is
    a server that speaks SandboxFusion's protocol. `none` runs programs with limits but without
    any isolation, and only if `dangerous` or the environment variable
    `DARE_DANGEROUSLY_RUN_WITHOUT_SANDBOX=1` says so.
    """
    with _lock:
        if name == "auto":
            return _first_that_holds()
        if name in _LOCAL:
            fault = _fault(name)
            if fault is not None:
                raise InvalidInput("sandbox", name, f"it does not hold here: {fault}")
            return _open[name]
        if name == "none":
            return _no_sandbox(dangerous)
        if name.startswith(("remote:", "http://", "https://")):
            return _remote(name.removeprefix("remote:"))
        raise InvalidInput("sandbox", name, suggest(name, ["auto", *_LOCAL, "remote:URL", "none"]))


def probe() -> dict[str, str | None]:
    """Every back-end, with None when it can be used here and otherwise the reason why not."""
    with _lock:
        faults: dict[str, str | None] = {name: _fault(name) for name in _LOCAL}
    faults["remote"] = "name a server: remote:http://host:port"
    faults["none"] = None if os.environ.get(DANGER) == "1" else f"it is refused unless {DANGER}=1"
    return faults


def close_all() -> None:
    """Close every shared sandbox; they are opened again when asked for."""
    with _lock:
        for sandbox in _open.values():
            sandbox.close()
        _open.clear()


def _first_that_holds() -> Sandbox:
    for name in _LOCAL:
        if _fault(name) is None:
            return _open[name]
    reasons = "; ".join(f"{name}: {_faults[name]}" for name in _LOCAL)
    raise InvalidInput(
        "sandbox",
        "auto",
        f"no sandbox holds here ({reasons}). Install bubblewrap (apt-get install bubblewrap) and "
        "allow user namespaces, or use a kernel with Landlock (5.13 or later), or name a server: "
        "sandbox='remote:http://host:port'",
    )


def _fault(name: str) -> str | None:
    """What is wrong with a local back-end; when nothing is, it is open afterwards."""
    if _faults.get(name) is not None:
        return _faults[name]
    if name in _open and not _open[name].closed:
        return None
    if name == "bwrap" and shutil.which("bwrap") is None:
        _faults[name] = "bubblewrap is not installed (apt-get install bubblewrap)"
        return _faults[name]
    sandbox = LocalSandbox(_LOCAL[name])
    known = name in _faults  # it was tried before and then closed
    fault = None if known else examine(sandbox)
    _faults[name] = fault
    if fault is None:
        _open[name] = sandbox
    else:
        sandbox.close()
    return fault


def _no_sandbox(dangerous: bool) -> Sandbox:
    if not dangerous and os.environ.get(DANGER) != "1":
        raise InvalidInput(
            "sandbox",
            "none",
            f"programs would run with all your rights; set {DANGER}=1 if you accept that, "
            "or use 'auto'",
        )
    if "none" not in _open or _open["none"].closed:
        _LOG.warning("programs run without a sandbox: they can read, change and send anything")
        _open["none"] = LocalSandbox(landlock.NONE)
    return _open["none"]


def _remote(url: str) -> Sandbox:
    if url not in _open or _open[url].closed:
        sandbox = RemoteSandbox(url)
        fault = sandbox.fault()
        if fault is not None:
            raise InvalidInput("sandbox", url, f"the server does not run programs: {fault}")
        _open[url] = sandbox
    return _open[url]


def _after_fork() -> None:
    """The lock may have been held by a thread that does not exist in the child."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_all)
