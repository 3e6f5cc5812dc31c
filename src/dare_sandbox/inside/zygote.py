"""The fork server: one fork for each program, never a line of a program in this process."""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import site
import socket
import sys
from typing import Any, NoReturn

from dare_sandbox.inside import kernel, processes
from dare_sandbox.inside.begin import Room, begin
from dare_sandbox.inside.confined import BareRoom, LandlockRoom
from dare_sandbox.inside.namespaces import NamespaceRoom
from dare_sandbox.inside.supervise import Watch

# Modules that programs often use, imported once. `threading` and `random` are safe to carry across
# a fork; nothing here starts a thread. What brings large libraries with it (`asyncio`, `hashlib`)
# would make every fork slower, for few programs.
_MODULES = """
    abc array ast base64 bisect builtins calendar cmath codecs collections
    collections.abc contextlib copy ctypes dataclasses datetime decimal enum fractions functools
    heapq inspect io itertools json math numbers operator os pprint queue random re
    pickle select signal socket statistics string struct symtable sys tempfile textwrap threading
    time traceback types typing unicodedata
"""


def preload(sites: list[str]) -> None:
    """Import the common modules and let programs find the installed packages."""
    for name in _MODULES.split():
        importlib.import_module(name)
    sys.path += sites
    site.setquit()
    site.sethelper()
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()  # the collector of a forked program leaves these pages shared


_IDLE_MS = 100
_JOB_FILES = 6  # control, source, stdin, stdout, stderr, channel
_ROOMS: dict[str, type[BareRoom] | type[NamespaceRoom]] = {
    "bwrap": NamespaceRoom,
    "landlock": LandlockRoom,
    "none": BareRoom,
}


def serve(listener: socket.socket, room: Room) -> None:
    """Fork for every message until the judge closes its end."""
    known: set[int] = set()
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    while True:
        if poller.poll(_IDLE_MS if known else None):
            message, files, _, _ = socket.recv_fds(listener, 65536, _JOB_FILES)
            if not message:
                return
            try:
                pid = room.fork()
            except OSError as error:  # no memory or no process left: that program is lost
                _complain(files[0], error)
            else:
                if pid == 0:
                    listener.close()
                    _attend(room, json.loads(message), files)
                known.add(pid)
            for descriptor in files:
                os.close(descriptor)
        _reap(room, known)


def _reap(room: Room, known: set[int]) -> None:
    """Bury supervisors that have ended; what one left behind when it was killed ends too."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in known and os.WIFSIGNALED(status):
            known.discard(pid)
            if not isinstance(room, NamespaceRoom):
                processes.end_descendants(spare=known)
                room.recover(pid)
        known.discard(pid)


def _complain(control: int, error: BaseException) -> None:
    os.write(control, json.dumps({"lost": f"{type(error).__name__}: {error}"}).encode())


def _attend(room: Room, limits: dict[str, Any], files: list[int]) -> NoReturn:
    """Supervise one program from beginning to end."""
    control = socket.socket(fileno=files[0])
    try:
        room.settle(limits)
        control.send(b"hello")
        if control.recv(16) == b"go":
            watch = Watch(control, begin(room, files[1:], limits), limits, room)
            reason = watch.until_end()
            watch.finish()
            room.empty()
            control.send(watch.report(reason))
        room.clear()
    except BaseException as error:
        try:
            _complain(control.fileno(), error)
            room.empty()
            room.clear()
        finally:
            os._exit(1)
    os._exit(0)


def _modest_thread_stacks() -> None:
    """The main stack may grow very large; that must not be the size of every thread's."""
    attributes = ctypes.create_string_buffer(64)
    kernel.LIBC.pthread_attr_init(attributes)
    kernel.LIBC.pthread_attr_setstacksize(attributes, ctypes.c_size_t(16 << 20))
    kernel.LIBC.pthread_setattr_default_np(attributes)


def main(descriptor: int, config: dict[str, Any]) -> None:
    """Serve the judge at the other end of a socket."""
    listener = socket.socket(fileno=descriptor)
    try:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        _modest_thread_stacks()
        room = _ROOMS[config["mode"]](config)
        preload(config["sites"])
    except BaseException as error:
        listener.send(f"{type(error).__name__}: {error}".encode())
        return
    listener.send(b"ready")
    serve(listener, room)
