"""Settings: where the runs differ, or everything of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare.report.blocks import Block, note, section, table
from dare.report.folder import RunData
from dare.report.text import legible

_TRAINING = (
    "preset",
    "seed",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "max_steps",
    "num_iterations",
    "steps_per_generation",
    "loss_type",
    "importance_sampling_level",
    "mask_truncated_completions",
    "temperature",
    "top_p",
    "top_k",
    "beta",
    "max_completion_length",
    "hint_conditioning",
    "system_prompt",
    "eval_temperature",
    "eval_samples",
    "bf16",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
)


def settings(runs: Sequence[RunData]) -> dict[str, Any]:
    """A row a setting, a column a run."""
    intro = "From config.yaml: everything as it was resolved when the run began."
    held = [flattened(run) for run in runs]
    if not any(held):
        return section("settings", "Settings", intro, [note("There is no config.yaml to show.")])
    names = list(dict.fromkeys(name for one in held for name in one))
    blocks: list[Block] = []
    if len(runs) > 1:
        different = [name for name in names if len({one.get(name) for one in held}) > 1]
        blocks.append(
            _table("settings-differ", "What differs", runs, held, different)
            if different
            else note("All settings of these runs are equal.")
        )
    blocks.append({**_table("settings-all", "All settings", runs, held, names), "folded": True})
    return section("settings", "Settings", intro, blocks)


def flattened(run: RunData) -> dict[str, str]:
    """Settings by dotted name, as text."""
    found: dict[str, str] = {}
    for name in _TRAINING:
        value = run.training(name)
        if value is not None:
            found[name] = legible(str(value), 300)
    _walk(run.config.get("curriculum"), "", found)
    _walk(run.config.get("versions"), "version of ", found)
    for name in ("prompts", "processes"):
        if name in run.config:
            found[name] = legible(str(run.config[name]), 300)
    return found


def _walk(value: Any, path: str, found: dict[str, str]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            joined = f"{path}{key}" if not path or path.endswith(" ") else f"{path}.{key}"
            _walk(inner, joined, found)
    elif path:
        found.setdefault(path, legible(str(value), 300))


def _table(
    name: str,
    title: str,
    runs: Sequence[RunData],
    held: Sequence[dict[str, str]],
    rows: Sequence[str],
) -> Block:
    body = [[row, *(one.get(row, "-") for one in held)] for row in rows]
    return table(name, title, "", ["setting", *(run.name for run in runs)], body)
