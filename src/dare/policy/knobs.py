"""Which settings make a step fit, and what does each of them save?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dare.policy.memory import GB, MemoryPlan, Moment, plan_memory
from dare.policy.shape import ModelShape
from dare.policy.workload import Workload

_LEAST = 0.02 * GB  # a smaller saving is not worth naming
_FEWEST_ROWS, _FEWEST_TOKENS, _SHORTEST = 16, 1024, 256


@dataclass(frozen=True)
class Knob:
    """A setting with another value, and what that saves."""

    setting: str
    price: str
    neutral: bool
    """Whether the run learns the same with it."""
    phase: str
    """Of those that do not fit, the one in which it saves most."""
    saves_gb: float
    fits: bool


@dataclass(frozen=True)
class _Turn:
    """Values of one field of a workload, from the least change on."""

    field: str
    values: Sequence[Any]
    price: str
    neutral: bool = True
    written: str = ""
    """How the recipe says it, where a number does not."""

    def to(self, workload: Workload, value: Any) -> Workload:
        change: dict[str, Any] = {self.field: value}
        return replace(workload, **change)

    def best(self, workload: Workload, limit: float) -> Any:
        """The first value that helps as much as any."""
        left = [_excess(self.to(workload, value), limit) for value in self.values]
        return self.values[left.index(min(left))]

    def knob(self, workload: Workload, value: Any, limit: float) -> Knob:
        after = plan_memory(self.to(workload, value), limit)
        phase, saved = _saving(plan_memory(workload, limit), after, limit)
        said = self.written or f"{self.field}: {getattr(workload, self.field)} -> {value}"
        return Knob(said, self.price, self.neutral, phase, saved / GB, after.excess(limit) <= 0)


def knobs_that_help(workload: Workload, limit: float, lora: ModelShape | None = None) -> list[Knob]:
    """Single settings that bring the plan nearer to `limit` bytes, the most helpful first.

    A setting with many values takes the largest that suffices, or else the first from which on
    smaller ones help no more. `lora` is the model's shape with adapters.
    """
    ranked = _ranked(workload, limit, lora)
    return [turn.knob(workload, value, limit) for turn, value in ranked]


def knobs_together(
    workload: Workload, limit: float, lora: ModelShape | None = None
) -> tuple[list[Knob], MemoryPlan]:
    """Few settings that together make the plan fit, and that plan.

    They are added one by one, those that leave the result alone first; what turns out not to be
    needed is taken back. If nothing suffices, the plan is the best there is.
    """
    taken: list[tuple[_Turn, Any]] = []
    now = workload
    while _excess(now, limit) > 0:
        found = _ranked(now, limit, lora)
        if not found:
            break
        turn, value = next((pair for pair in found if pair[0].neutral), found[0])
        taken.append((turn, value))
        now = turn.to(now, value)
    if _excess(now, limit) <= 0:
        taken = _eased(workload, taken, limit)
    knobs, now = [], workload
    for turn, value in taken:
        knobs.append(turn.knob(now, value, limit))
        now = turn.to(now, value)
    return knobs, plan_memory(now, limit)


def _excess(workload: Workload, limit: float) -> float:
    return plan_memory(workload, limit).excess(limit)


def _ranked(workload: Workload, limit: float, lora: ModelShape | None) -> list[tuple[_Turn, Any]]:
    before = _excess(workload, limit)
    found: list[tuple[float, _Turn, Any]] = []
    for turn in _turns(workload, lora):
        value = turn.best(workload, limit)
        left = _excess(turn.to(workload, value), limit)
        if before - left >= _LEAST:
            found.append((left, turn, value))
    found.sort(key=lambda item: item[0])
    return [(turn, value) for _, turn, value in found]


def _eased(
    workload: Workload, taken: list[tuple[_Turn, Any]], limit: float
) -> list[tuple[_Turn, Any]]:
    """Without the settings that are not needed, and with each at its largest value that fits."""

    def fits(chosen: list[tuple[_Turn, Any]]) -> bool:
        now = workload
        for turn, value in chosen:
            now = turn.to(now, value)
        return _excess(now, limit) <= 0

    for pair in sorted(taken, key=lambda pair: pair[0].neutral):
        rest = [other for other in taken if other is not pair]
        taken = rest if fits(rest) else taken
    for place, (turn, value) in enumerate(taken):
        for milder in turn.values:
            tried = [*taken[:place], (turn, milder), *taken[place + 1 :]]
            if milder == value or fits(tried):
                taken = tried
                break
    return taken


def _saving(before: MemoryPlan, after: MemoryPlan, limit: float) -> tuple[str, float]:
    now = {moment.phase: moment.total for moment in after.worst_moments()}

    def saved(moment: Moment) -> float:
        return moment.total - now.get(moment.phase, 0.0)

    over = [moment for moment in before.worst_moments() if moment.total > limit]
    best = max(over, key=saved, default=before.peak)
    return best.phase, saved(best)


def _turns(workload: Workload, lora: ModelShape | None) -> Iterator[_Turn]:
    """Every setting that can be turned and is not yet."""
    if not workload.gradient_checkpointing:
        said = "gradient_checkpointing: true"
        yield _Turn("gradient_checkpointing", [True], "speed", written=said)
    if workload.precision == "float":
        yield _Turn("mixed_precision", [True], "rounding", neutral=False, written="bf16: true")
    if workload.optim == "adamw_torch":
        fused = "adamw_torch_fused"
        yield _Turn("optim", [fused], "nothing", written=f"optim: {fused}")
    ladders = (
        ("per_device_train_batch_size", _batch_sizes(workload), "speed"),
        # Of the rows in use: the setting may allow more.
        ("generation_rows", _halves(workload.rows, _FEWEST_ROWS), "speed"),
        ("score_batch_tokens", _halves(workload.score_batch_tokens, _FEWEST_TOKENS), "speed"),
        ("max_completion_length", _halves(workload.max_completion_length, _SHORTEST), "length"),
    )
    for field, values, price in ladders:
        if values:
            yield _Turn(field, values, price, neutral=price == "speed")
    if workload.shape.adapters:
        return
    if lora is not None:
        yield _Turn("shape", [lora], "adapters only", neutral=False, written="peft: {r: 16}")
    if workload.beta > 0:
        yield _Turn("beta", [0.0], "no KL term", neutral=False, written="beta: 0")


def _batch_sizes(workload: Workload) -> list[int]:
    """Smaller ones that split the rollouts evenly."""
    share = workload.rollout_budget // workload.processes
    size = workload.per_device_train_batch_size
    return [smaller for smaller in range(size - 1, 0, -1) if share % smaller == 0]


def _halves(value: int, least: int) -> list[int]:
    """Half of it, a quarter, ..., down to the least that makes sense."""
    found = []
    while value // 2 >= least:
        value //= 2
        found.append(value)
    return found


FULL_PASS = 16384
"""Tokens of a micro-batch from which the GPU, not the launching of its kernels, sets the pace. On
an H200 a pass of a 1.5 B model took 0.31 s with 7,000 tokens and 0.35 s with 14,000."""


def fuller_passes(workload: Workload, limit: float) -> int | None:
    """A larger per_device_train_batch_size that fits too and makes training faster, or None."""
    rows, best = workload.per_device_train_batch_size, None
    share = workload.rollout_budget // workload.processes
    while workload.micro_batch_tokens < FULL_PASS:
        rows *= 2
        workload = replace(workload, per_device_train_batch_size=rows)
        if rows > share or share % rows or plan_memory(workload, limit).peak.total > limit:
            break
        best = rows
    return best
