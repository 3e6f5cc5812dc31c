"""A progress line for people: reward, tier mix, tokens a second, time left."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback


class RichProgress(TrainerCallback):
    """One bar a run; add it to a trainer's callbacks and set disable_tqdm=True. With `tokens`, a
    budget of generated ones ends the run, and its steps only bound it."""

    def __init__(
        self, name: str = "train", console: Console | None = None, tokens: int | None = None
    ) -> None:
        self._name, self._console = name, console
        self._budget, self._generated = tokens, 0
        self._bar: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        if not state.is_world_process_zero:
            return
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
        )
        self._bar.start()
        updates = args.updates_per_generation
        self._task = self._bar.add_task(
            self._name,
            total=state.max_steps // updates,
            completed=state.global_step // updates,
            figures="generating ..." if state.global_step < state.max_steps else "",
        )
        self._start, self._tokens = time.perf_counter(), None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """See TrainerCallback."""
        if self._bar is None or not logs:
            return
        step = state.global_step // args.updates_per_generation
        if "eval_accuracy" in logs and logs["eval_accuracy"] is not None:
            self._bar.console.print(
                f"{self._name} step {step}: accuracy {logs['eval_accuracy']:.3f}, "
                f"{logs['eval_tokens']:.1f} tokens a response"
            )
        if "reward" not in logs:
            return

        def ours(name: str) -> Any:
            return logs.get(f"curriculum/{name}", 0)

        total = self._generated = ours("generated_tokens_total")
        if self._tokens is None:
            self._tokens = total - ours("generated_tokens")
        speed = (total - self._tokens) / max(time.perf_counter() - self._start, 1e-9)
        figures = f"reward {logs['reward']:.2f}  {ours('varied_groups'):.0%} of groups teach"
        if ours("tier_easy") or ours("tier_hard"):
            counts = [f"{ours(f'tier_{tier}')} {tier}" for tier in ("easy", "medium", "hard")]
            figures += f"  {', '.join(counts)}"
        figures += f"  {speed:,.0f} tok/s"
        self._bar.update(self._task, completed=step, figures=figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        if self._bar is not None:
            updates = args.updates_per_generation
            done, total = state.global_step // updates, state.max_steps // updates
            if self._budget is not None and self._generated >= self._budget:
                self._bar.update(self._task, total=done, completed=done)
                told = f"all {self._generated:,} tokens are generated after step {done}"
                self._bar.console.print(f"{self._name}: {told}")
            elif done < total:
                self._bar.console.print(f"{self._name}: stopped after step {done} of {total}")
            self._bar.stop()
            self._bar = None
