"""The pool: from threads, coroutines, forked and spawned processes; killed, and left behind."""

import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dare_verify.math import WorkerPool, verify
from dare_verify.pool import Account, Worker, _Task

PAIR = {"gold": r"2\sqrt{2}", "answer": r"\sqrt{8}"}
WRONG = {"gold": r"2\sqrt{2}", "answer": r"\sqrt{7}"}
LIGHT = WorkerPool("light_worker")  # each process that imports this file has its own


def statuses(pool: WorkerPool, *items: dict[str, str]) -> list[str]:
    return [reply.status for reply in pool.run(items)]


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pids: list[int]) -> bool:
    end = time.monotonic() + 30.0
    while any(map(running, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(running, pids))


def test_each_failure_has_its_name(math_pool: WorkerPool) -> None:
    faults = ["hang", "crash", "memory", "spin"]
    items = [PAIR, *({**PAIR, "fault": fault} for fault in faults), WRONG]
    assert statuses(math_pool, *items) == ["ok", "timeout", "crashed", "memory", "timeout", "ok"]
    assert statuses(math_pool, {"answer": "1"}) == ["error"]  # no gold in the request
    assert [reply.value for reply in math_pool.run([PAIR, WRONG])] == [True, False]


def test_a_busy_machine_gives_the_verdicts_of_an_idle_one(
    light_worker: str, one_busy_core: None
) -> None:
    """On a core with four others an item takes five times as long, and has its limit all the same:
    0.3 s of work or sleep are within 0.6 s whatever the clock says; a minute of either is not."""
    with WorkerPool(light_worker, workers=4, limit_s=0.6) as busy:
        for how in ("spin", "sleep"):  # two at a time: four that are late would share less
            assert statuses(busy, PAIR | {how: 0.3}, PAIR | {how: 60.0}) == ["ok", "timeout"]
        # Where many are late, each has a quarter.
        many = [PAIR | {"spin": 0.02}, *[PAIR | {"spin": 0.4}] * 8]
        found = statuses(busy, *many)
        assert found[0] == "ok"
        assert found.count("timeout") >= 4


def test_a_host_that_keeps_the_processors_does_not_make_an_item_late() -> None:
    """Of ten seconds the item waited for four and the host kept five: one is its own."""

    class Asleep(Worker):
        def account(self) -> Account:
            return Account(cpu_s=2.2, waited_s=7.0, ready=False)

    with socket.socket() as channel:
        before = Account(cpu_s=2.0, waited_s=3.0, ready=False)
        task = _Task(0, Asleep(0, 0, channel), 100.0, before, stolen_s=50.0, look=0.0)
        task.measure(110.0, 55.0, limit_s=2.0)
        assert task.spent_s == pytest.approx(1.0)
        task.measure(110.0, 50.0, limit_s=2.0)
        assert task.spent_s == pytest.approx(6.0)


def test_an_answer_that_is_there_counts_however_late_it_is_read(
    light_worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's own process may wait for a core: meanwhile a worker answers and falls asleep."""
    measure = _Task.measure

    def held_up(task: _Task, now: float, stolen_s: float, limit_s: float) -> None:
        time.sleep(1.0)
        measure(task, time.monotonic(), task.stolen_s, limit_s)

    monkeypatch.setattr(_Task, "measure", held_up)
    with WorkerPool(light_worker, workers=1, limit_s=0.5) as busy:
        assert statuses(busy, PAIR | {"sleep": 0.2}) == ["ok"]


def test_workers_are_recycled(light_worker: str) -> None:
    with WorkerPool(light_worker, workers=1, recycle=5) as small:
        assert statuses(small, *[PAIR] * 20) == ["ok"] * 20
        assert small.counts["forked"] == 4


@pytest.mark.parametrize("victims", ["workers", "server", "all"])
def test_a_killed_pool_recovers(light_worker: str, victims: str) -> None:
    killed: list[int] = []

    def kill() -> None:
        time.sleep(0.1)
        pids = pool.pids()
        killed.extend({"workers": pids[1:], "server": pids[:1], "all": pids}[victims])
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    with WorkerPool(light_worker, workers=2) as pool:
        pool.run([PAIR, PAIR])
        forked = pool.counts["forked"]
        killer = threading.Thread(target=kill)
        killer.start()
        replies = pool.run([PAIR | {"sleep": 0.005}, WRONG] * 200)  # half a second at least
        killer.join()
        assert killed
        assert pool.counts["forked"] > forked
    assert [reply.value for reply in replies] == [True, False] * 200


def test_many_threads_share_it(math_pool: WorkerPool) -> None:
    def ask(_: int) -> list[bool]:
        return [reply.value for reply in math_pool.run([PAIR, WRONG])]

    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(ask, range(24)))
    assert found == [[True, False]] * 24
    assert len(math_pool.pids()) <= 1 + math_pool.workers + math_pool.spare


def test_coroutines_wait_for_it() -> None:
    async def ask(answer: str) -> bool | None:
        return await asyncio.to_thread(verify, rf"\boxed{{{answer}}}", r"2\sqrt{2}")

    async def main() -> list[bool | None]:
        return await asyncio.gather(*(ask(answer) for answer in (r"\sqrt{8}", r"\sqrt{7}") * 4))

    assert asyncio.run(main()) == [True, False] * 4


def ask_in_child(queue: "multiprocessing.SimpleQueue[list[str]]", path: str) -> None:
    os.environ["PYTHONPATH"] = path  # the fork server may be older than it
    queue.put(statuses(LIGHT, PAIR))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes_have_their_own(light_worker: str, method: str) -> None:
    with LIGHT:
        assert statuses(LIGHT, PAIR) == ["ok"]  # the parent's pool is up
        pids = LIGHT.pids()
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=ask_in_child, args=(queue, os.environ["PYTHONPATH"]))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert queue.get() == ["ok"]
        queue.close()
        assert statuses(LIGHT, PAIR) == ["ok"]  # and still is
        assert LIGHT.pids() == pids


SCRIPT = textwrap.dedent(
    r"""
    import os, sys
    from dare_verify.math import WorkerPool, default, verify
    if sys.argv[2:]:
        default.pool = WorkerPool(sys.argv[2])
    print(verify(r"\boxed{\sqrt{8}}", r"2\sqrt{2}"), *default.pool.pids(), flush=True)
    if sys.argv[1] == "die":
        os.kill(os.getpid(), 9)
    """
)


@pytest.mark.parametrize(("end", "worker"), [("exit", []), ("die", ["light_worker"])])
@pytest.mark.usefixtures("light_worker")
def test_nothing_outlives_a_plain_script(tmp_path: Path, end: str, worker: list[str]) -> None:
    """No `if __name__ == "__main__"`, and a hostile file next to the script."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "sympy.py").write_text("raise SystemExit('the wrong sympy')")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), end, *worker],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == (0 if end == "exit" else -signal.SIGKILL)
    verdict, *pids = done.stdout.split()
    assert verdict == "True"
    assert len(pids) == 2
    assert gone([int(pid) for pid in pids])


@pytest.mark.parametrize("closed", [(0,), (0, 1, 2)])
@pytest.mark.usefixtures("light_worker")
def test_closed_standard_files(tmp_path: Path, closed: tuple[int, ...]) -> None:
    """The sockets then have the numbers of the standard files."""
    code = (
        f"import os\nfor fd in {closed}: os.close(fd)\n"
        "from dare_verify.math import WorkerPool, default, verify\n"
        "default.pool = WorkerPool('light_worker')\n"
        "found = verify(r'\\boxed{\\sqrt{8}}', r'2\\sqrt{2}')\n"
        f"open({str(tmp_path / 'found')!r}, 'w').write(str(found))\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=600, check=False)
    assert (tmp_path / "found").read_text() == "True"


def test_a_parent_killed_while_it_starts_leaves_nothing() -> None:
    code = (
        "import threading, time, os\nfrom dare_verify.math import default\n"
        "import subprocess\nkept = subprocess.Popen.__init__\n"
        "def start(self, *a, **k):\n    kept(self, *a, **k)\n"
        "    print(self.pid, flush=True)\n    os.kill(os.getpid(), 9)\n"
        "subprocess.Popen.__init__ = start\n"
        "default.pool.run([{'gold': '1', 'answer': '1'}])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert gone([int(done.stdout)])


def test_closing_ends_everything(light_worker: str) -> None:
    pool = WorkerPool(light_worker, workers=2)
    pool.run([PAIR, PAIR])
    pids = pool.pids()
    before = len(os.listdir("/proc/self/fd"))
    pool.close()
    assert gone(pids)
    assert len(os.listdir("/proc/self/fd")) < before
    assert statuses(pool, PAIR) == ["ok"]
    pool.close()


def test_what_cannot_start_is_down_not_wrong() -> None:
    with WorkerPool("dare.rewards.no_such_module") as broken:
        assert statuses(broken, PAIR, PAIR) == ["down", "down"]
