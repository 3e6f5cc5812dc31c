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
from dare.policy.generate import Generated

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


class Raising(Estimator):
    """Leaves the program in the first step."""

    def refresh(self, step: int, rng: np.random.Generator) -> int:
        raise SystemExit(0)


class Worded(Estimator):
    """Says how hard prompts are in words."""

    def difficulty(self) -> Any:
        return "hard"


class Other(Estimator):
    """Has a constructor that nobody calls so."""

    def __init__(self) -> None:
        super().__init__(0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Raising", rf"estimator Raising = SystemExit\(0\): was raised in {__file__}, line"),
        ("Worded", "must be 12 failure rates"),
        ("Other", r"takes \(count\), or \(count, buffer, config\)"),
    ],
)
def test_one_that_fails_is_named(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        made(tmp_path, name).train()


class Sampler:
    """A generator of one's own that answers `made`."""

    made: Any = None

    def __init__(self, policy: Any) -> None: ...

    def generate(self, request: Any, sampling: Any) -> Any:
        return self.made(len(request.prompt_R))

    def sync(self) -> None: ...

    release = close = sync


@pytest.mark.parametrize(
    "answer",
    [
        lambda count: None,
        lambda count: Generated.of([np.array([3])] * (count - 1), [True] * (count - 1)),
        lambda count: Generated.of([np.array([10**6])] * count, [True] * count),
        lambda count: Generated.of([np.array([-1])] * count, [True] * count),
        lambda count: Generated.of([np.array([3.5])] * count, [True] * count),
        lambda count: Generated.of([np.array([3] * 500)] * count, [True] * count),
        lambda count: 1 / 0,
    ],
)
def test_a_generator_that_fails_or_answers_nonsense_is_named(
    answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sampler, "made", staticmethod(answer))
    with pytest.raises(InvalidInput, match="generator Sampler"):
        tiny.trainer(tmp_path, generator=f"{HERE}:Sampler").train()


@pytest.mark.parametrize("source", ["raise RuntimeError('no')", "import sys; sys.exit(0)", "def :"])
@pytest.mark.parametrize("part", ["reward", "generator", "estimator"])
def test_a_module_that_fails_where_it_is_imported_is_told_of(
    part: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    name = "failing_module:Thing"
    changes = {"curriculum": {"estimator.name": name}} if part == "estimator" else {part: name}
    with pytest.raises(InvalidInput, match=r"cannot be imported \(.*failing_module.py.*line 1"):
        tiny.trainer(tmp_path / "run", **changes)
