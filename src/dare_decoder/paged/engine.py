"""Keeps the slots busy: admits rollouts, steps all of them, takes out those that ended.

The host looks at the slots every few steps only. A rollout that has ended leaves its slot to the
next in the queue; when the queue is empty the batch shrinks. A rollout's tokens depend on its
prompt and its own random numbers, not on slot, batch or order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dare_decoder.batching import IntArray
from dare_decoder.paged.pages import PagePool, SharedPrompts, pages_for
from dare_decoder.paged.prefill import prefill
from dare_decoder.paged.state import Outputs, Slots
from dare_decoder.paged.step import Cache, Step
from dare_decoder.paged.weights import Weights, rotary_angles
from dare_decoder.request import Request
from dare_decoder.sampling import Sampling

_LOOK = 8  # steps between two looks of the host: a row that ended idles for half of them
# Batches that are captured. Below 64 rows a step takes as long as with 64: it reads the weights.
_SIZES = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
_FIELDS = ("token", "prefix", "own", "row", "written", "budget", "alive")


class Engine:
    """One call's worth of decoding: its rollouts, slots and pages."""

    def __init__(
        self,
        model: Any,
        weights: Weights,
        request: Request,
        ends: list[int],
        sampling: Sampling,
        *,
        rows: int,
        pages: int,
        page: int,
        autocast: Callable[[], AbstractContextManager[Any]],
        progress: Callable[[int], Any] | None,
    ) -> None:
        device = weights.head.device
        self._model, self._weights, self._sampling = model, weights, sampling
        self._autocast, self._progress = autocast, progress
        prompts, prompt_R, max_tokens_R = request.prompts, request.prompt_R, request.max_tokens_R
        self._prompt_R, self._budget_R = prompt_R, max_tokens_R
        count, longest = len(prompt_R), int(max_tokens_R.max())
        widest = max(len(prompts[prompt]) for prompt in np.unique(prompt_R).tolist())
        store = weights.head.new_empty(
            len(weights.layers), 2, pages, weights.shared, page, weights.depth
        )
        store[:, :, 0] = 0.0
        self._cache = Cache(store, rotary_angles(model, widest + longest, device))
        # One column more than any row uses: where a row that ended would go on is page 0.
        self._width = pages_for(widest, page) + pages_for(longest, page) + 1
        self._slots = Slots.empty(rows, self._width, device)
        self._outputs = Outputs(
            noise=torch.from_numpy(request.uniform(np.arange(count), longest)).to(device),
            ends=torch.tensor(ends, dtype=torch.int32, device=device),
            tokens=torch.zeros(count, longest, dtype=torch.int32, device=device),
            length=torch.zeros(count, dtype=torch.int32, device=device),
            stopped=torch.zeros(count, dtype=torch.int32, device=device),
        )
        self._pool = PagePool(pages)
        self._shared = SharedPrompts(prompts, prompt_R, self._pool, page)
        self._prompts, self._page = prompts, page
        # Longest budgets first: they would otherwise run alone at the end.
        self._queue = deque(np.argsort(-max_tokens_R, kind="stable").tolist())
        self._row = np.full(rows, -1, dtype=np.int64)  # which rollout is in each slot
        self._ran = np.zeros(rows, dtype=np.int64)  # steps it has been through
        self._own: list[list[int]] = [[] for _ in range(rows)]
        self._table = np.zeros((rows, self._width), dtype=np.int32)
        self._steps: dict[int, Callable[[], None]] = {}
        self._captures = Captures()

    def run(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [rollouts, longest], lengths and whether each was stopped by an end token."""
        reported = 0
        while True:
            self._admit()
            if not len(self._active):
                break
            self._shrink()
            steps = self._reserve()
            step = self._step(self._size(int(self._active.max()) + 1))
            for _ in range(steps):
                step()
            self._ran[self._active] += steps
            alive = self._slots.alive.cpu().numpy()
            for slot in self._active.tolist():
                if not alive[slot]:
                    self._leave(slot, ended=True)
            if self._progress is not None:
                total = int(self._outputs.length.sum())
                self._progress(total - reported)
                reported = total
        return self._outputs.tokens, self._outputs.length, self._outputs.stopped

    @property
    def _active(self) -> IntArray:
        """Slots that have a rollout."""
        return np.flatnonzero(self._row >= 0)

    def _admit(self) -> None:
        """Fill free slots from the queue while pages last; new prompts are read together."""
        free = deque(np.flatnonzero(self._row < 0).tolist())
        promised = 0  # pages that those admitted here will ask for at once
        joined: list[int] = []
        fresh: list[int] = []
        while free and self._queue:
            row = self._queue[0]
            prompt = int(self._prompt_R[row])
            first = pages_for(min(_LOOK, int(self._budget_R[row])), self._page)
            # What those that run may soon ask for is left to them, or they would be sent back.
            spare = len(self._active) // 8
            if self._shared.need(prompt) + first + spare + promised > self._pool.free:
                # What rollouts that wait hold is given back, unless others run that will free more.
                waits = self._shared.held(prompt) and len(self._active) > 0
                if waits or not self._shared.drop_idle():
                    break
                continue
            self._queue.popleft()
            if not self._shared.held(prompt):
                self._shared.hold(prompt)
                fresh.append(prompt)
            self._shared.begin(prompt)
            promised += first
            slot = free.popleft()
            self._row[slot], self._ran[slot] = row, 0
            front = self._shared.pages(prompt)
            self._table[slot, : len(front)] = front
            joined.append(slot)
        if fresh:
            with self._autocast():
                prefill(
                    self._model,
                    [self._prompts[prompt][:-1] for prompt in fresh],
                    [self._shared.pages(prompt) for prompt in fresh],
                    self._cache.pages,
                )
        if joined:
            self._seat(joined)
        elif self._queue and not len(self._active):
            raise torch.OutOfMemoryError("the cache has no room for one rollout")

    def _seat(self, slots: list[int]) -> None:
        """Write the state of newly admitted rollouts to the device."""
        rows = self._row[slots]
        prompts = self._prompt_R[rows].tolist()
        zero = np.zeros(len(slots), np.int64)
        values = {
            "token": [self._shared.last(prompt) for prompt in prompts],
            "prefix": [self._shared.size(prompt) for prompt in prompts],
            "own": zero,
            "row": rows,
            "written": zero,
            "budget": self._budget_R[rows],
            "alive": zero + 1,
        }
        packed = np.stack([np.asarray(values[name], dtype=np.int32) for name in _FIELDS])
        sent = torch.from_numpy(packed).to(self._slots.token.device)
        where = torch.tensor(slots, device=sent.device)
        for name, column in zip(_FIELDS, sent, strict=True):
            getattr(self._slots, name)[where] = column

    def _leave(self, slot: int, *, ended: bool) -> None:
        """Take the rollout out of its slot; one that has not ended waits to begin again."""
        row = int(self._row[slot])
        self._pool.give(self._own[slot])
        self._own[slot] = []
        self._table[slot] = 0
        self._row[slot] = -1
        self._shared.leave(int(self._prompt_R[row]), ended=ended)
        if not ended:
            self._queue.appendleft(row)
            self._slots.alive[slot] = 0

    def _reserve(self) -> int:
        """Pages for the next steps of every active slot; returns how many steps these are.

        Where pages run out, the rollouts that have run least are sent back to the queue: they
        lose least, and their random numbers make them the same again.
        """
        active = self._active
        steps = int(min(_LOOK, (self._budget_R[self._row[active]] - self._ran[active]).max()))
        for slot in active[np.argsort(-self._ran[active], kind="stable")].tolist():
            if self._row[slot] < 0:
                continue
            want = min(int(self._ran[slot]) + steps, int(self._budget_R[self._row[slot]]))
            more = pages_for(want, self._page) - len(self._own[slot])
            while more > self._pool.free:
                if self._shared.drop_idle():
                    continue
                others = self._active
                youngest = int(others[np.argmin(self._ran[others])])
                if youngest == slot and len(others) == 1:
                    raise torch.OutOfMemoryError("the cache has no room for one rollout")
                self._leave(youngest, ended=False)
                if youngest == slot:
                    break
            if self._row[slot] < 0 or more <= 0:
                continue
            begin = len(self._shared.pages(int(self._prompt_R[self._row[slot]])))
            begin += len(self._own[slot])
            taken = self._pool.take(more)
            self._own[slot] += taken
            self._table[slot, begin : begin + more] = taken
        self._slots.table.copy_(torch.from_numpy(self._table))
        return steps

    def _shrink(self) -> None:
        """Move what is left to the first slots once that makes the batch smaller."""
        active = self._active
        if self._queue or self._size(len(active)) >= self._size(int(active.max()) + 1):
            return
        count, order = len(active), torch.from_numpy(active).to(self._slots.token.device)
        for name in _FIELDS:
            column = getattr(self._slots, name)
            column[:count] = column[order]
        self._slots.alive[count:] = 0
        self._row[:count], self._row[count:] = self._row[active], -1
        self._ran[:count] = self._ran[active]
        self._table[:count], self._table[count:] = self._table[active], 0
        self._own = [self._own[slot] for slot in active.tolist()]
        self._own += [[] for _ in range(len(self._row) - count)]

    def _size(self, count: int) -> int:
        """The smallest batch that is captured and holds so many slots."""
        return next((size for size in _SIZES if count <= size < len(self._row)), len(self._row))

    def _step(self, size: int) -> Callable[[], None]:
        if size not in self._steps:
            step = Step(
                self._weights, self._cache, self._slots.first(size), self._outputs, self._sampling
            )
            if self._weights.head.is_cuda:
                longest = self._outputs.tokens.shape[1]
                # Kernels are compiled for numbers by whether they are 1 or multiples of 16.
                sort = (longest == 1, longest % 16 == 0, len(self._outputs.ends))
                kind = (self._weights.kind, size, self._width, self._sampling, self._page, sort)
                self._steps[size] = self._captures.capture(step, self._slots, kind)
            else:
                self._steps[size] = step
        return self._steps[size]


class Captures:
    """CUDA graphs of one step for batches of several sizes, sharing their memory."""

    _side: Any = None  # one stream for all: each new one would get a workspace of its own
    _warm: ClassVar[set[Any]] = set()

    def __init__(self) -> None:
        self._pool: Any = None
        self._steps: list[Any] = []  # a graph goes on writing to its step's scratch memory

    def capture(self, step: Callable[[], None], slots: Slots, kind: Any) -> Callable[[], None]:
        """The step as a graph.

        The first of its `kind` is run once before, with all slots idle: that sets libraries up and
        compiles kernels, neither of which may happen while a graph is recorded.
        """
        cls = type(self)
        if cls._side is None:
            cls._side = torch.cuda.Stream()
        alive = slots.alive.clone()
        slots.alive.zero_()
        cls._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(cls._side):
            if kind not in cls._warm:
                step()
                cls._warm.add(kind)
            torch.cuda.synchronize()
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # Other threads, of rewards or of communication, may go on with their own work.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                step()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(cls._side)
        slots.alive.copy_(alive)
        self._steps.append(step)
        return graph.replay
