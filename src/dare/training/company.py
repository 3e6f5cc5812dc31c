"""The processes of a run: each does its share, they tell one another, and none outlives another."""

from __future__ import annotations

import atexit
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.numpy import load, save

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput


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
        sizes = torch.empty(self.processes, dtype=torch.int64, device=self._device)
        dist.all_gather_single(sizes, torch.tensor([len(parcel)], device=self._device))
        longest = int(sizes.max())
        sent = torch.frombuffer(bytearray(parcel.ljust(longest, b" ")), dtype=torch.uint8)
        received = torch.empty(self.processes * longest, dtype=torch.uint8, device=self._device)
        dist.all_gather_single(received, sent.to(self._device))
        parcels = received.view(self.processes, longest).cpu().numpy()
        pairs = zip(parcels, sizes.tolist(), strict=True)
        return [load(one[:size].tobytes()) for one, size in pairs]

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


def packed(value: Any) -> Array:
    """What JSON can say, as an array to gather."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def unpacked(array: Array) -> Any:
    """The value of `packed`."""
    return json.loads(array.tobytes())


@contextlib.contextmanager
def in_company(processes: int, saved: Callable[[], str]) -> Iterator[None]:
    """One of several processes: where another is lost, a line says so and what is `saved`."""
    try:
        yield
        if processes > 1:  # or threads of the group may outlive what they use, and abort
            atexit.register(_leave)
    except RuntimeError as error:
        words = ("gloo", "nccl", "connection closed", "connection reset")
        told = str(error).partition("\n")[0]
        lost = isinstance(error, dist.DistError)
        if processes == 1 or not (lost or any(word in told.lower() for word in words)):
            raise
        fix = f"another process of this run has ended or does not answer ({told}); {saved()}"
        raise InvalidInput("processes", processes, fix) from error


def _leave() -> None:
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # of one that has gone already
            dist.barrier()
        dist.destroy_process_group()
