"""The processes of a run: each does its share, they tell one another, and none outlives another."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.numpy import load, save

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput, require

PATIENCE_S = 60.0
"""How long a file may take to be seen by another machine, on a network file system."""
LAST_WORDS_S = 30.0
"""How long a process that has lost another may take to say so and end, as torchrun allows it."""


class Company:
    """One of several `processes`, which all make the same calls in the same order.

    What they tell one another are arrays: nothing is pickled, and nothing that arrives is run.
    """

    def __init__(self, rank: int = 0, processes: int = 1, device: Any = "cpu") -> None:
        self.rank, self.processes, self._device = rank, processes, device

    def share(self, count: int) -> Array:
        """Which of `count` things this process does."""
        return np.arange(self.rank, count, self.processes)

    def shares(self, count: int) -> list[Array]:
        """Which of them each process does."""
        return [np.arange(rank, count, self.processes) for rank in range(self.processes)]

    def gather(self, **mine: Array) -> list[dict[str, Array]]:
        """What each process has to tell, in one exchange whatever there is of it."""
        if self.processes == 1:
            return [mine]
        parcel = save({name: np.ascontiguousarray(one) for name, one in mine.items()})
        sizes = self._from_all(torch.tensor([len(parcel)]))
        longest = int(max(sizes))
        sent = bytearray(parcel.ljust(longest, b" "))
        parcels = self._from_all(torch.frombuffer(sent, dtype=torch.uint8))
        pairs = zip(parcels, sizes, strict=True)
        return [load(one[: int(size)].cpu().numpy().tobytes()) for one, size in pairs]

    def _from_all(self, mine: torch.Tensor) -> list[torch.Tensor]:
        mine = mine.to(self._device)
        found = [torch.empty_like(mine) for _ in range(self.processes)]
        dist.all_gather(found, mine)
        return found

    def exchange(self, values: Array) -> Array:
        """Rows that each process has of its share, put together on all of them."""
        parts = [one["values"] for one in self.gather(values=values)]
        first = parts[0]  # it has a row if any has
        rows = sum(map(len, parts))
        result = np.empty((rows, *first.shape[1:]), first.dtype)
        for rank, part in enumerate(parts):
            if len(part):
                result[rank :: self.processes] = part
        return result

    def in_order(self, parts: Sequence[Sequence[Any]]) -> list[Any]:
        """The things of all processes as they were before each took its share."""
        count, many = sum(map(len, parts)), self.processes
        return [parts[place % many][place // many] for place in range(count)]

    def first_finds(self, find: Callable[[], Any]) -> Any:
        """What the first process finds, as JSON can say it; where it refuses, all of them do."""
        if self.processes == 1:
            return find()
        said: dict[str, Any] = {}
        if self.rank == 0:
            try:
                said["found"] = find()
            except InvalidInput as error:
                said["refused"] = [error.field, error.value, error.fix]
        told = unpacked(self.gather(said=packed(said))[0]["said"])
        if "refused" in told:
            raise InvalidInput(*told["refused"])
        return told["found"]

    def agree(self, written: Path, prompts: Sequence[str]) -> None:
        """Refuse machines that do not share what they must: the folder in which the first process
        has `written` a file, and the prompts."""
        if self.processes == 1:
            return
        self.gather(told=np.zeros(1))  # the file is written
        patience = time.monotonic() + PATIENCE_S
        while not (there := written.is_file()) and time.monotonic() < patience:
            time.sleep(0.2)
        digest = hashlib.sha256("\n".join(prompts).encode()).digest()
        everyone = self.gather(there=np.array([there]), digest=np.frombuffer(digest, np.uint8))
        fix = "not every process sees it: put it on storage that all machines share"
        shared = all(one["there"][0] for one in everyone)
        require(shared, "output_dir", str(written.parent), fix)
        fix = "differs from process to process: give every machine the same files"
        same = all(np.array_equal(one["digest"], everyone[0]["digest"]) for one in everyone)
        require(same, "train_dataset", f"{len(prompts)} prompts", fix)


def packed(value: Any) -> Array:
    """What JSON can say, as an array to gather."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def unpacked(array: Array) -> Any:
    """The value of `packed`."""
    return json.loads(array.tobytes())


def is_loss(error: BaseException, processes: int) -> bool:
    """Whether an error says that another process has ended or does not answer."""
    words = ("gloo", "nccl", "connection closed", "connection reset")
    told = str(error).partition("\n")[0].lower()
    spoken = isinstance(error, dist.DistError) or any(word in told for word in words)
    return processes > 1 and isinstance(error, RuntimeError) and spoken


@contextlib.contextmanager
def in_company(processes: int, saved: Callable[[], str]) -> Iterator[None]:
    """One of several processes: where another is lost, a line says so and what is `saved`."""
    try:
        yield
        if processes > 1:  # or threads of the group may outlive what they use, and abort
            atexit.register(_leave)
    except RuntimeError as error:
        if not is_loss(error, processes):
            raise
        told = str(error).partition("\n")[0]
        _be_heard()
        fix = f"another process of this run has ended or does not answer ({told}); {saved()}"
        raise InvalidInput("processes", processes, fix) from error


def _be_heard() -> None:
    """From now on SIGTERM does nothing for a while: a launcher that has seen another process end
    sends it to the rest, and would cut the line off that says why."""
    until = time.monotonic() + LAST_WORDS_S

    def wait(number: int, frame: Any) -> None:
        if time.monotonic() > until:
            raise SystemExit(128 + number)

    with contextlib.suppress(ValueError):  # outside the main thread signals are not ours
        signal.signal(signal.SIGTERM, wait)


_TOGETHER = list[BaseException]()


def together(error: BaseException) -> BaseException:
    """An exception that every process raises: at their end they wait for one another."""
    _TOGETHER[:] = [error]
    return error


def _leave() -> None:
    if dist.is_initialized():
        # One that an error of its own ends waits for nobody.
        if getattr(sys, "last_value", None) in (None, *_TOGETHER):
            with contextlib.suppress(RuntimeError):  # of one that has gone already
                dist.barrier()
        dist.destroy_process_group()
