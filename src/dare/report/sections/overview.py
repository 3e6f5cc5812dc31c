"""At a glance: what was run and how far it got; and with which settings."""

from __future__ import annotations

import math
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
    for run in runs:
        rewards = _known(run.metrics, "reward")
        if rewards and not any(rewards):
            text = f"Every reward of {run.name} is 0, so nothing is learnt. Is it the policy, or "
            blocks.append(note(text + "does the reward miss the answer? Read rollouts below."))
    return section("overview", "Overview", intro, blocks)


def _known(lines: Sequence[Any], key: str) -> list[float]:
    """The values there are."""
    found = values(lines, key)
    known: list[float] = found[np.isfinite(found)].tolist()
    return known


def _facts(run: RunData) -> dict[str, str]:
    """How far a run got: held-out accuracy of its first and last evaluation, and what it cost."""
    accuracy = _known(run.evaluations, "accuracy") or [math.nan]
    # Of the last tenth of the steps, of five at least.
    late = _known(run.metrics[-max(5, len(run.metrics) // 10) :], "reward")
    return {
        "accuracy": percent(accuracy[-1]),
        "at first": percent(accuracy[0]),
        "reward": short(float(np.mean(late)) if late else None),
        "steps": f"{int(run.step[-1]) + 1:,}" if len(run.step) else "0",
        "tokens": short([math.nan, *run.tokens[np.isfinite(run.tokens)]][-1]),
        "time": duration(float(run.seconds[-1]) if len(run.seconds) else 0.0),
        "method": run.method,
        "seed": str(run.seed),
    }


def _tiles(run: RunData) -> Block:
    facts = _facts(run)
    peak = max(_known(run.metrics, "memory_mb"), default=None)
    seen = [math.nan, *_known(run.metrics, "coverage")][-1]
    gain = f"from {facts['at first']} at the first evaluation"
    gain = "no evaluation yet" if facts["at first"] == "-" else gain
    planned, prompts = run.config.get("steps", run.training("max_steps")), run.config.get("prompts")
    total = f"of {planned:,}" if isinstance(planned, int) and planned > 0 else ""
    return tiles(
        [
            ("Method", run.method, f"seed {run.seed}"),
            ("Accuracy", facts["accuracy"], gain),
            ("Reward", facts["reward"], "mean of the last steps, training prompts"),
            ("Steps", facts["steps"], total),
            ("Generated tokens", facts["tokens"], ""),
            ("Time", facts["time"], "all phases, without evaluation"),
            ("Seen", percent(seen), f"of {prompts:,} prompts" if isinstance(prompts, int) else ""),
            ("Peak memory", "-" if peak is None else f"{peak:,.0f} MB", ""),
        ]
    )


def _table(runs: Sequence[RunData]) -> Block:
    facts = [_facts(run) for run in runs]
    rows = [[run.name, *one.values()] for run, one in zip(runs, facts, strict=True)]
    caption = "Accuracy is that of the last evaluation; reward the mean of the last steps."
    return table("runs", "Runs", caption, ["run", *facts[0]], rows)


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

    def listed(name: str, title: str, rows: Sequence[str]) -> Block:
        body = [[row, *(one.get(row, "-") for one in held)] for row in rows]
        return table(name, title, "", ["setting", *(run.name for run in runs)], body)

    names = list(dict.fromkeys(name for one in held for name in one))
    blocks = [{**listed("settings-all", "All settings", names), "folded": True}]
    if len(runs) > 1:
        different = [name for name in names if len({one.get(name) for one in held}) > 1]
        equal = note("All settings of these runs are equal.")
        shown = listed("settings-differ", "What differs", different) if different else equal
        blocks.insert(0, shown)
    return section("settings", "Settings", intro, blocks)


def flattened(run: RunData) -> dict[str, str]:
    """Settings by dotted name, as text."""
    trained = {name: run.training(name) for name in _TRAINING}
    found = {name: value for name, value in trained.items() if value is not None}
    _walk(run.config.get("curriculum"), "", found)
    _walk(run.config.get("versions"), "version of ", found)
    found |= {name: run.config[name] for name in ("prompts", "processes") if name in run.config}
    return {name: legible(str(value), 300) for name, value in found.items()}


def _walk(value: Any, path: str, found: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            joined = f"{path}{key}" if not path or path.endswith(" ") else f"{path}.{key}"
            _walk(inner, joined, found)
    elif path:
        found.setdefault(path, value)
