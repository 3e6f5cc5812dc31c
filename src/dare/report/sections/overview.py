"""At a glance: what was run and how far it got; and with which settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dare.report.blocks import Block, duration, note, percent, section, short, table, tiles
from dare.runs.reader import RunData, values
from dare.text import legible


def overview(runs: Sequence[RunData]) -> dict[str, Any]:
    """Tiles of one run, or a table of several."""
    intro = "What was run, how far it got and what it cost."
    blocks = [_tiles(runs[0])] if len(runs) == 1 else [_table(runs)]
    return section("overview", "Overview", intro, blocks)


def accuracies(run: RunData) -> tuple[float | None, float | None]:
    """Held-out accuracy of the first and of the last evaluation."""
    found = values(run.evaluations, "accuracy")
    found = found[np.isfinite(found)]
    return (float(found[0]), float(found[-1])) if len(found) else (None, None)


def late(run: RunData, *keys: str) -> float | None:
    """Mean over the last tenth of the steps, or the last five where that is more."""
    found = values(run.metrics, *keys)
    found = found[-max(5, len(found) // 10) :]
    found = found[np.isfinite(found)]
    return float(found.mean()) if len(found) else None


def _tiles(run: RunData) -> Block:
    first, last = accuracies(run)
    seconds = float(run.seconds[-1]) if len(run.seconds) else 0.0
    tokens = run.tokens[np.isfinite(run.tokens)]
    memory = values(run.metrics, "memory_mb")
    peak = float(np.nanmax(memory)) if np.isfinite(memory).any() else None
    gain = "" if first is None else f"from {percent(first)} at the first evaluation"
    if last is None:
        gain = "no evaluation yet"
    planned = run.config.get("steps", run.training("max_steps"))
    steps = int(run.step[-1]) + 1 if len(run.step) else 0
    total = f"of {planned:,}" if isinstance(planned, int) and planned > 0 else ""
    prompts = run.config.get("prompts")
    of = f"of {prompts:,} prompts" if isinstance(prompts, int) else ""
    return tiles(
        [
            ("Method", run.method, f"seed {run.seed}"),
            ("Accuracy", percent(last), gain),
            ("Reward", short(late(run, "reward")), "mean of the last steps, training prompts"),
            ("Steps", f"{steps:,}", total),
            ("Generated tokens", short(float(tokens[-1]) if len(tokens) else None), ""),
            ("Time", duration(seconds), "all phases, without evaluation"),
            ("Seen", percent(newest(run, "coverage")), of),
            ("Peak memory", "-" if peak is None else f"{peak:,.0f} MB", ""),
        ]
    )


def newest(run: RunData, key: str) -> float | None:
    """The last value there is."""
    found = values(run.metrics, key)
    found = found[np.isfinite(found)]
    return float(found[-1]) if len(found) else None


def _table(runs: Sequence[RunData]) -> Block:
    head = ["run", "accuracy", "at first", "reward", "steps", "tokens", "time", "method", "seed"]
    rows = []
    for run in runs:
        first, last = accuracies(run)
        tokens = run.tokens[np.isfinite(run.tokens)]
        rows.append(
            [
                run.name,
                percent(last),
                percent(first),
                short(late(run, "reward")),
                f"{int(run.step[-1]) + 1:,}" if len(run.step) else "0",
                short(float(tokens[-1]) if len(tokens) else None),
                duration(float(run.seconds[-1]) if len(run.seconds) else 0.0),
                run.method,
                str(run.seed),
            ]
        )
    caption = "Accuracy is that of the last evaluation; reward the mean of the last steps."
    return table("runs", "Runs", caption, head, rows)


_TRAINING = (
    *("preset", "seed", "learning_rate", "lr_scheduler_type", "warmup_steps"),
    *("max_steps", "num_iterations", "steps_per_generation", "loss_type"),
    *("importance_sampling_level", "mask_truncated_completions"),
    *("temperature", "top_p", "top_k", "beta", "max_completion_length"),
    *("hint_conditioning", "system_prompt", "eval_temperature", "eval_samples"),
    *("bf16", "gradient_accumulation_steps", "per_device_train_batch_size"),
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
            _settings_table("settings-differ", "What differs", runs, held, different)
            if different
            else note("All settings of these runs are equal.")
        )
    blocks.append(
        {**_settings_table("settings-all", "All settings", runs, held, names), "folded": True}
    )
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


def _settings_table(
    name: str,
    title: str,
    runs: Sequence[RunData],
    held: Sequence[dict[str, str]],
    rows: Sequence[str],
) -> Block:
    body = [[row, *(one.get(row, "-") for one in held)] for row in rows]
    return table(name, title, "", ["setting", *(run.name for run in runs)], body)
