"""An estimator of one's own: by its name, in a run, in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from dare import InvalidInput
from dare.config import CurriculumConfig
from dare.curriculum import Estimator, Outcome, RolloutBuffer

HERE = __name__


class MovingAverage(Estimator):
    """Half of the last group, half of what was believed before."""

    def observe(self, outcome: Outcome) -> None:
        believed = self._arrays["difficulty"]
        rate = outcome.failures_Q / outcome.trials_Q
        believed[outcome.prompt_Q] += 0.5 * (rate - believed[outcome.prompt_Q])


class Reader(MovingAverage):
    """Also looks at the rescored buffer."""

    rescores = True

    def __init__(self, count: int, buffer: RolloutBuffer, config: CurriculumConfig) -> None:
        super().__init__(count)
        self._buffer, self.config = buffer, config
        self.rescored = 0

    def refresh(self, step: int, rng: np.random.Generator) -> int:
        self.rescored += int((self._buffer["scored_step"] > self._buffer["step"]).sum())
        return 0


def made(folder: Path, name: str, **changes: Any) -> Any:
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, **changes}
    return tiny.trainer(folder, curriculum={"estimator.name": f"{HERE}:{name}"}, **settings)


def test_it_is_told_every_outcome_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", "MovingAverage")
    whole.train()
    made(tmp_path / "half", "MovingAverage", max_steps=2).train()
    again = made(tmp_path / "half", "MovingAverage")
    again.train(resume_from_checkpoint=True)
    difficulty = whole.curriculum.difficulty()
    assert np.array_equal(difficulty, again.curriculum.difficulty())
    drawn = whole.curriculum.visits_P > 0
    assert (difficulty[drawn] != 0.5).any()
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_one_that_asks_for_rescored_rollouts_gets_them(tmp_path: Path) -> None:
    trainer = made(tmp_path, "Reader")
    trainer.train()
    estimator = trainer.curriculum.estimator
    assert estimator.rescored > 0
    assert estimator.config == trainer.settings


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("papier", "paper"),
        ("no_such_module:Thing", "cannot be imported"),
        (f"{HERE}:Missing", "cannot be imported"),
        (f"{HERE}:tiny", "subclass"),
        ("dare:Curriculum", "subclass"),
    ],
)
def test_a_name_that_is_no_estimator_is_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        tiny.trainer(tmp_path, curriculum={"estimator.name": name}).train()


class TooLarge(Estimator):
    """Counts failures where it should give their rate."""

    def difficulty(self) -> np.ndarray[Any, Any]:
        return np.full(self.count, 2.0)


class TooFew(Estimator):
    """Forgets prompts."""

    def difficulty(self) -> np.ndarray[Any, Any]:
        return np.full(3, 0.5)


@pytest.mark.parametrize(("name", "said"), [("TooLarge", r"\[0, 1\]"), ("TooFew", "failure rates")])
def test_what_is_no_failure_rate_is_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=rf"{name}: difficulty.*{said}"):
        made(tmp_path, name).train()
