"""Hooks into Trainer's loop: the end of a step, and a polite stop."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from dare.training.from_trl import few_figures


class StepEnd(TrainerCallback):
    """Runs `finish` between an update and logging, evaluation and saving.

    `begin` runs before the first step, when a checkpoint's weights have been loaded.
    """

    def __init__(self, finish: Callable[[], None], begin: Callable[[], None]) -> None:
        self._finish, self._begin = finish, begin

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        self._begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        self._finish()


class WholeSteps(TrainerCallback):
    """Holds back what falls due between two updates of a step until the step is `over`: logs,
    evaluations, checkpoints and the end of the run. So every checkpoint is one of whole steps."""

    _EVENTS = ("should_log", "should_evaluate", "should_save", "should_training_stop")

    def __init__(self, over: Callable[[], bool]) -> None:
        self._over = over
        self._due: set[str] = set()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        if not self._over():
            self._due |= {name for name in self._EVENTS if getattr(control, name)}
            for name in self._EVENTS:
                setattr(control, name, False)
            return
        if control.should_training_stop:  # whoever stops here has said whether to save
            self._due.discard("should_save")
        for name in self._due:
            setattr(control, name, True)
        self._due.clear()


class StopWhenAsked(TrainerCallback):
    """Saves and stops at the end of the step in which any process was `asked` to, by a signal.

    A process that stopped alone would leave the others waiting for it: each tells the others with
    what else it has to tell of the step, and what came of that is `agreed`.
    """

    def __init__(self) -> None:
        self.asked = self.agreed = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        if self.agreed:
            control.should_save = control.should_training_stop = True


class _FewFigures(TrainerCallback):
    """Hands on the few figures of a step that a person reads."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """See TrainerCallback."""
        super().on_log(args, state, control, logs=few_figures(logs, state.global_step), **others)


class ShortProgress(_FewFigures, ProgressCallback):
    """transformers' bar, with these."""


class ShortPrinter(_FewFigures, PrinterCallback):
    """The same without a bar."""


def print_less(callbacks: list[TrainerCallback]) -> None:
    """Let transformers' own two print a step's few figures; other callbacks have all of them."""
    short: dict[type, type[TrainerCallback]] = {
        ProgressCallback: ShortProgress,
        PrinterCallback: ShortPrinter,
    }
    for place, one in enumerate(callbacks):
        if type(one) in short:  # not one that a user has derived
            callbacks[place] = short[type(one)]()


@contextlib.contextmanager
def stop_on_signals(callback: StopWhenAsked, how: Callable[[], str]) -> Iterator[None]:
    """On SIGTERM or Ctrl-C finish the step in flight, save, stop and say `how` to resume.

    A second signal stops at once; the newest checkpoint is complete in any case.
    """

    def ask(number: int, frame: Any) -> None:
        if callback.asked:
            raise KeyboardInterrupt
        callback.asked = number
        print(f"\nstopping after this step; continue with: {how()}", file=sys.stderr)

    with asked_to_stop(ask):
        yield


@contextlib.contextmanager
def asked_to_stop(answer: Callable[[int, Any], Any]) -> Iterator[None]:
    """Inside this context SIGTERM and Ctrl-C do nothing but call `answer`.

    Where another handler was set meanwhile, that one stays.
    """
    before: dict[signal.Signals, Any] = {}
    with contextlib.suppress(ValueError):  # outside the main thread signals are not ours
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, answer)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is answer:
                signal.signal(number, handler)
