"""Threads, forks, mishaps and leftovers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dare_sandbox import Ended, Job, Limits, Sandbox, close_all, open_sandbox
from dare_sandbox.inside import system
from dare_sandbox.local import Ends, LocalRun


def _double(sandbox: Sandbox, number: int) -> bool:
    result = sandbox.run(Job("print(int(input()) * 2)", str(number).encode()))
    return result.stdout == f"{number * 2}\n".encode()


def test_many_threads(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda n: _double(sandbox, n), range(60)))


def test_a_channel(sandbox: Sandbox) -> None:
    source = (
        "import socket\ns = socket.socket(fileno=3)\nprint('x' * 300000)\n"
        "while True:\n    data = s.recv(100)\n    if not data: break\n    s.sendall(data.upper())"
    )
    running = sandbox.start(Job(source, channel=True))
    assert running.channel is not None
    with running.channel as channel:
        for word in (b"one", b"two"):
            channel.sendall(word)
            assert channel.recv(100) == word.upper()
    result = running.wait()
    assert (result.ended, len(result.stdout)) == (Ended.EXITED, 300001)


@pytest.mark.parametrize("channel", [False, True])
def test_kill(sandbox: Sandbox, channel: bool) -> None:
    running = sandbox.start(Job("while True: pass", channel=channel))
    threading.Timer(0.2, running.kill).start()
    result = running.wait()
    assert (result.ended, result.code) == (Ended.SIGNALLED, 9)
    assert result.cpu_s < 5  # of 10 that it has: it did not end by itself
    running.kill()  # and again, when there is nothing left
    if running.channel is not None:
        running.channel.close()


def _in_child(backend: str) -> None:
    sandbox = open_sandbox(backend)
    os._exit(0 if all(_double(sandbox, n) for n in range(3)) else 1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_other_processes(sandbox: Sandbox, method: str) -> None:
    assert _double(sandbox, 1)
    context = multiprocessing.get_context(method)
    children = [context.Process(target=_in_child, args=(sandbox.name,)) for _ in range(2)]
    for child in children:
        child.start()
    assert _double(sandbox, 2)
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert _double(sandbox, 3)


def _helpers(root: int | None = None) -> list[int]:
    """The living processes of the sandboxes below a process."""
    found = []
    for pid in system.descendants(root or os.getpid()):
        with contextlib.suppress(OSError):
            if b"marshal.loads" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _kill_helpers() -> None:
    for pid in _helpers():
        with contextlib.suppress(ProcessLookupError):  # the end of one is the end of others
            os.kill(pid, signal.SIGKILL)


def test_restart_after_a_mishap(sandbox: Sandbox) -> None:
    assert _double(sandbox, 1)
    _kill_helpers()
    assert _double(sandbox, 2)
    close_all()
    assert _leftovers()[2:] == ([], [])


def test_a_killed_server_loses_its_programs(backend: str) -> None:
    close_all()
    sandbox = open_sandbox(backend)
    running = sandbox.start(Job("import time; time.sleep(30)"))
    _kill_helpers()
    result = running.wait()
    assert result.ended is Ended.LOST
    assert result.detail
    assert _double(sandbox, 1)
    close_all()
    assert _leftovers()[2:] == ([], [])  # though nobody was left to clear up


def test_an_abandoned_run_is_ended(backend: str) -> None:
    close_all()
    sandbox = open_sandbox(backend)
    assert _double(sandbox, 1)
    calm = len(_helpers())
    running = sandbox.start(Job("import time; time.sleep(30)"))
    while len(_helpers()) < calm + 2:  # the supervisor, and the program that it forks
        time.sleep(0.01)
    del running
    deadline = time.monotonic() + 30
    while len(_helpers()) > calm:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _leftovers() -> tuple[int, int, list[str], list[str]]:
    mounts = Path("/proc/self/mountinfo").read_text().count("\n")
    descriptors = len(os.listdir("/proc/self/fd"))
    files = [n for n in os.listdir(tempfile.gettempdir()) if n.startswith(f"dare-sandbox-{_ME}")]
    return mounts, descriptors, files, _groups(_ME)


def _groups(pid: int) -> list[str]:
    """The control groups of a process's sandboxes; those of others may go while one looks."""
    folders = (folder for folder, _, _ in os.walk("/sys/fs/cgroup"))
    return [folder for folder in folders if f"/dare-sandbox-{pid}-" in folder]


_ME = os.getpid()


def test_nothing_is_left_behind(backend: str) -> None:
    close_all()
    before = (*_leftovers(), _helpers())
    sandbox = open_sandbox(backend)
    daemon = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)\n"
    daemon += "open('file', 'w')"
    for _ in range(3):
        assert sandbox.run(Job(daemon)).ended is Ended.EXITED
        sandbox.run(Job("while True: pass", limits=Limits(wall_s=0.1)))
    sandbox.close()
    assert (*_leftovers(), _helpers()) == before
    assert sandbox.run(Job("")).ended is Ended.LOST  # closed
    assert _double(open_sandbox(backend), 4)  # and open again


def test_nothing_is_left_when_the_judge_is_killed(backend: str) -> None:
    script = (
        "import os, time\nfrom dare_sandbox import Job, open_sandbox\n"
        f"sandbox = open_sandbox({backend!r})\n"
        'running = sandbox.start(Job(\'open("f", "w"); import time; time.sleep(60)\'))\n'
        "time.sleep(0.2); print(os.getpid(), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as judge:
        assert judge.stdout is not None
        pid = int(judge.stdout.readline())
        helpers = _helpers(pid)
        assert helpers
        judge.kill()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{helper}").exists() for helper in helpers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not [n for n in os.listdir(tempfile.gettempdir()) if n.startswith(f"dare-sandbox-{pid}")]
    assert not _groups(pid)


def _tell(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_machine_that_stands_still_takes_no_time_from_a_program(sandbox: Sandbox) -> None:
    source = "import socket\ns = socket.socket(fileno=3)\ns.sendall(b'!')\nprint(s.recv(1))"
    running = sandbox.start(Job(source, limits=Limits(wall_s=4.0), channel=True))
    assert running.channel is not None
    with running.channel as channel:
        assert channel.recv(1) == b"!"
        begun = running._clock
        while running._clock is begun:  # the program may run before its supervisor counts
            time.sleep(0.01)
        held = set[int]()  # the program and all that watch it
        # The kernel's list of children may lack some while others come and go.
        while more := set(system.descendants(os.getpid())) - held:
            _tell(more, signal.SIGSTOP)
            held |= more
        time.sleep(6.0)
        assert running.waited_s() > 5.0, {pid: system._states(pid) for pid in held}
        _tell(held, signal.SIGCONT)
        time.sleep(0.5)
        assert running.waited_s() > 5.0
        channel.sendall(b"?")
        result = running.wait()
    assert (result.ended, result.stdout) == (Ended.EXITED, b"b'?'\n"), result
    assert result.waited_s > 5.0 > result.wall_s - result.waited_s, result


def test_what_is_told_late_hides_no_waiting() -> None:
    """A supervisor may be stopped after it looked at its clock and before it speaks."""
    control, supervisor = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel, other = socket.socketpair()
    out, err = os.pipe(), os.pipe()
    with subprocess.Popen(["sleep", "60"]) as program, supervisor, channel, other:
        ends = Ends(control, os.pidfd_open(program.pid), out[0], err[0], None, None)
        running = LocalRun(Limits(wall_s=4.0), ends, channel)
        supervisor.send(struct.pack("dd", time.monotonic() - 60.0, 0.5))
        deadline = time.monotonic() + 30.0
        while running.waited_s() < 60.0 and time.monotonic() < deadline:
            time.sleep(0.01)
        waited_s = running.waited_s()
        program.kill()
        os.close(out[1])
        os.close(err[1])
        running.wait()
    assert 60.0 < waited_s < 90.5


@pytest.mark.parametrize(
    ("source", "asleep"),
    [
        ("import time\ntime.sleep(60)", True),
        ("while True: pass", False),
        ("import os\nif os.fork():\n    os.wait()\nwhile True: pass", False),
        (
            "import threading\ndef spin():\n    while True: pass\n"
            "threading.Thread(target=spin).start()",
            False,
        ),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", True),
    ],
    ids=["sleeps", "works", "waits for a child", "waits for a thread", "stopped"],
)
def test_who_sleeps(source: str, asleep: bool) -> None:
    program = subprocess.Popen([sys.executable, "-c", source])
    try:
        end = time.monotonic() + 20
        found: list[bool] = []
        while found[-5:] != [asleep] * 5 and time.monotonic() < end:
            time.sleep(0.05)
            members = [program.pid, *system.descendants(program.pid)]
            found.append(system.measure(members).asleep)
        assert found[-5:] == [asleep] * 5
    finally:
        for pid in [*system.descendants(program.pid), program.pid]:
            os.kill(pid, signal.SIGKILL)
        program.wait()


BURN = "import os, signal, time\ndef burn(s):\n    while time.process_time() < s: pass\n"


def test_time_of_children_that_nobody_waits_for_counts(sandbox: Sandbox) -> None:
    alone = f"{BURN}signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    alone += "while True:\n    if os.fork() == 0: burn(0.4); os._exit(0)\n"
    alone += "    try: os.wait()\n    except ChildProcessError: pass\n"
    result = sandbox.run(Job(alone, limits=Limits(wall_s=60.0, cpu_s=2.0)))
    assert result.ended is Ended.TIME, result
    assert 1.9 < result.cpu_s < 4.0, result

    left = f"{BURN}r, w = os.pipe()\nif os.fork() == 0:\n    burn(1.0)\n    os.write(w, b'!')\n"
    left += "    time.sleep(60)\nos.read(r, 1)\ntime.sleep(0.3)"
    result = sandbox.run(Job(left))
    assert result.ended is Ended.EXITED, result
    assert 0.9 < result.cpu_s < 2.0, result


def test_processes_that_come_and_go_have_their_time_from_nobody(sandbox: Sandbox) -> None:
    source = f"{BURN}signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    source += "while True:\n    if os.fork() == 0: burn(0.002); os._exit(0)\n"
    source += "    try: os.wait()\n    except ChildProcessError: pass\n"
    result = sandbox.run(Job(source, limits=Limits(wall_s=2.0)))
    assert result.ended is Ended.TIME, result
    assert result.waited_s < 0.5 * result.wall_s, result


def test_memory_that_many_processes_share_counts_once(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dare_sandbox.cgroups.find", lambda: None)
    close_all()
    sandbox = open_sandbox(backend)
    source = "import os, time\ndata = b'x' * (40 << 20)\n"
    source += "for _ in range(20):\n    if os.fork() == 0: time.sleep({}); os._exit(0)\n"
    source += "for _ in range(20): os.wait()\nprint('all')"
    result = sandbox.run(Job(source.format("1.5"), limits=Limits(wall_s=60.0, memory_mb=256)))
    assert (result.ended, result.stdout) == (Ended.EXITED, b"all\n"), result
    own = source.format("0.5); own = b'y' * (40 << 20); time.sleep(60")
    result = sandbox.run(Job(own, limits=Limits(wall_s=60.0, memory_mb=256)))
    assert result.ended is Ended.MEMORY, result
    close_all()
