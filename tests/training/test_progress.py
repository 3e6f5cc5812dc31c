"""The progress line: how a run ended is said, and a budget of tokens that is spent is no stop."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from dare.training.progress import RichProgress


@pytest.mark.parametrize(
    ("tokens", "generated", "steps", "told"),
    [
        (500, 512, 3, "run: all 512 tokens are generated after step 3"),
        (500, 400, 3, "run: stopped after step 3 of 9"),
        (None, 512, 3, "run: stopped after step 3 of 9"),
        (None, 512, 9, None),
    ],
)
def test_the_end_of_a_run(tokens: int | None, generated: int, steps: int, told: str | None) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    bar = RichProgress("run", console, tokens)
    args = SimpleNamespace(updates_per_generation=1)
    state = SimpleNamespace(is_world_process_zero=True, max_steps=9, global_step=0)
    bar.on_train_begin(args, state, None)
    state.global_step = steps
    logs = {"reward": 0.5, "curriculum/generated_tokens_total": generated}
    bar.on_log(args, state, None, logs)
    bar.on_train_end(args, state, None)
    shown = console.export_text()
    assert ("run: " in shown) == (told is not None)
    assert told is None or told in shown
    assert (f"{steps}/{steps}" in shown) == (told is None or "all 512" in told)


def test_a_run_that_was_finished_generates_nothing() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    bar = RichProgress("run", console)
    args = SimpleNamespace(updates_per_generation=1)
    state = SimpleNamespace(is_world_process_zero=True, max_steps=9, global_step=9)
    bar.on_train_begin(args, state, None)
    bar.on_train_end(args, state, None)
    assert "generating" not in console.export_text()
