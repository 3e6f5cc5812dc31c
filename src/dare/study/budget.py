"""Equal budgets: a run that stops at a number of generated tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

if TYPE_CHECKING:
    from dare.training.trainer import DareTrainer


class StopAtTokens(TrainerCallback):
    """Ends training with the step in which the generated tokens reach the budget.

    Probes count: every token that a method generates is paid for.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.trainer: DareTrainer | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        if self.trainer is not None and self.trainer.generated_tokens >= self.budget:
            control.should_training_stop = True
            control.should_evaluate = True
            # Resuming from here would train a step too many.
            control.should_save = False
