"""Estimators that watch a run: they change nothing, and see exactly what the run's own sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from dare import InvalidInput
from dare.curriculum import Curriculum
from dare.curriculum.arrays import keyed_rng
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.rollouts import RolloutBatch
from dare.study.estimators import ESTIMATORS, EstimatorStudy, Measurement, choose_prompts, watch
from dare.study.views import NewestView

TIMING = ("seconds", "time", "memory_mb")
PROMPTS, ROLLOUTS, STEPS = 10, 6, 6


def made(folder: Path, **changes: Any) -> Any:
    data = tiny.problems(0.95, 0.5, 0.05, each=8)
    return tiny.trainer(folder, data=data, **{"max_steps": STEPS, **changes})


class Snapshots(EstimatorStudy):
    """Keeps the curriculum's own estimates beside the shadows' after every step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        super().on_step_end(args, state, control, **rest)
        assert self.shadows is not None
        own = self._trainer.curriculum.difficulty()  # type: ignore[union-attr]
        shadow = self.shadows.watchers["dare"].estimator.difficulty().copy()
        plain = self.shadows.watchers["dare-no-foresight"].estimator.difficulty().copy()
        paper = self.shadows.watchers["paper-budget"].estimator.difficulty().copy()
        self.kept = [*getattr(self, "kept", []), (own, shadow, plain, paper)]


def studied(folder: Path, **changes: Any) -> tuple[Any, Snapshots, dict[str, Any]]:
    trainer = made(folder, **changes)
    wanted = Measurement(at=(2, STEPS), prompts=PROMPTS, rollouts=ROLLOUTS)
    study = Snapshots(trainer, wanted)
    trainer.add_callback(study)
    trainer.train()
    return trainer, study, study.result(tiny.lines(folder / "metrics.jsonl"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Snapshots, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("watched")
    return folder, *studied(folder)


def test_the_run_is_the_one_without_the_study(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, watched, _, _ = run
    # Some that watch read the log-probs of every rollout: the run scores them all then.
    monkeypatch.setattr(Curriculum, "wants_scores", "all")
    alone = made(tmp_path)
    alone.train()
    for name in ("selections.jsonl", "samples.jsonl"):
        assert (folder / name).read_text("utf-8") == (tmp_path / name).read_text("utf-8")
    lines = zip(*(tiny.lines(f / "metrics.jsonl") for f in (folder, tmp_path)), strict=True)
    for one, other in lines:
        assert tiny.without(one, TIMING) == tiny.without(other, TIMING)
    for one, other in zip(watched.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert watched.generated_tokens == alone.generated_tokens
    states = [trainer.curriculum.state_dict() for trainer in (watched, alone)]
    assert states[0]["meta"] == states[1]["meta"]
    for name, array in states[0]["arrays"].items():
        np.testing.assert_array_equal(array, states[1]["arrays"][name])


def test_a_shadow_configured_alike_is_the_own_estimate(run: Any) -> None:
    kept = run[2].kept
    assert len(kept) == STEPS
    for own, shadow, _, _ in kept:
        np.testing.assert_array_equal(own, shadow)
    assert any((own != plain).any() for own, _, plain, _ in kept)


def test_the_papers_shadow_is_a_run_of_the_papers_estimator(tmp_path: Path) -> None:
    changes = {
        "estimator.name": "paper",
        "cold_start.temperature": "paper",
        "buffer.rollouts_per_prompt": 8,
    }
    trainer, study, _ = studied(tmp_path, curriculum=changes)
    assert trainer.curriculum.foresight is None
    for own, _, _, paper in study.kept:
        np.testing.assert_array_equal(own, paper)


def test_points_hold_every_estimator_and_both_sides(run: Any) -> None:
    result = run[3]
    assert [point["step"] for point in result["points"]] == [2, STEPS]
    for point in result["points"]:
        assert set(point["estimates"]) == set(ESTIMATORS)
        assert len(point["prompt"]) == PROMPTS
        assert sum(point["seen"]) == PROMPTS // 2
        assert point["trials"] == [ROLLOUTS] * PROMPTS
        for values in point["estimates"].values():
            assert len(values) == PROMPTS
            assert all(0.0 <= value <= 1.0 for value in values)
    json.dumps(result, allow_nan=False)


def test_estimates_are_read_at_the_measured_step(run: Any) -> None:
    _, trainer, study, result = run
    rows = {name: row for row, name in enumerate(trainer.curriculum.prompts.ids())}
    for point in result["points"]:
        own = study.kept[point["step"] - 1][0]
        found = [own[rows[name]] for name in point["prompt"]]
        assert point["estimates"]["dare"] == pytest.approx(found, abs=0)


def test_costs_go_to_those_that_cause_them(run: Any) -> None:
    folder, trainer, study, result = run
    cost = result["cost"]
    lines = tiny.lines(folder / "metrics.jsonl")
    refreshed = sum(line["tokens"]["refreshed"] for line in lines)
    assert study.shadows is not None
    assert study.shadows.rescored + study.shadows.read_again == refreshed
    assert cost["dare"]["scored"] - cost["dare"]["once"] + cost["dare"]["generated"] == refreshed
    probe = result["run_generated_tokens"] - sum(line["generated_tokens"] for line in lines)
    assert cost["dare"]["generated"] == probe  # the reference prompts of the cold start
    for name in ("previous-fr", "posterior", "uniform"):
        assert cost[name]["generated"] == cost[name]["scored"] == 0
    for name in ("teacher", "entropy", "judge", "current-fr"):
        assert cost[name]["generated"] > 0
        served = len(trainer.store) if name == "teacher" else PROMPTS
        assert cost[name]["estimates"] == 2 * served
    assert cost["paper"]["scored"] > 0


def test_the_sweep_at_the_papers_threshold_is_its_estimate(run: Any) -> None:
    for point in run[3]["points"]:
        ess, aligned, prior = (np.array(point["sweep"][n]) for n in ("ess", "aligned", "prior"))
        seen = np.array(point["seen"])
        assert ((ess > 0) == seen).all()
        expected = np.where(ess >= 3.0, aligned, prior)
        np.testing.assert_array_equal(point["estimates"]["paper"], expected)


def test_the_same_study_gives_the_same_figures(run: Any, tmp_path: Path) -> None:
    again = studied(tmp_path)[2]
    for one, other in zip(run[3]["points"], again["points"], strict=True):
        names = ("prompt", "seen", "truth", "estimates", "sweep", "truth_tokens")
        assert {n: one[n] for n in names} == {n: other[n] for n in names}


def test_prompts_are_half_seen_and_stay() -> None:
    seen = np.zeros(100, bool)
    seen[:30] = True
    rows = choose_prompts(seen, 20, keyed_rng(0, 0, "x"))
    assert len(set(rows.tolist())) == 20
    assert seen[rows].sum() == 10
    later = seen.copy()
    later[30:50] = True
    after = choose_prompts(later, 20, keyed_rng(0, 0, "x"))
    assert later[after].sum() == 10
    stayed = set(rows[~seen[rows]]) & set(after[~later[after]])
    assert stayed == {row for row in rows[~seen[rows]] if not later[row]}
    few = choose_prompts(np.arange(100) < 3, 20, keyed_rng(0, 0, "x"))
    assert len(few) == 20
    assert (few < 3).sum() == 3
    assert (choose_prompts(np.ones(100, bool), 20, keyed_rng(0, 0, "x"))).shape == (20,)


def test_a_view_keeps_the_newest_and_its_own_scores() -> None:
    buffer = RolloutBuffer(6, 100)
    rng = np.random.default_rng(0)
    for step in range(4):
        prompt = np.repeat([0, 1], 3)
        tokens = [[1, 2, 3]] * 6
        logprobs = [[-0.1, -0.2, -0.3]] * 6
        reward = rng.integers(0, 2, 6).astype(float).tolist()
        kinds = [0, 0, 1] * 2
        batch = RolloutBatch.from_lists(prompt, tokens, logprobs, reward, conditioning=kinds)
        buffer.add(batch, step)
    view = NewestView(buffer, 3)
    for row in (0, 1):
        plain = [i for i in range(len(buffer)) if buffer["prompt"][i] == row and buffer.plain[i]]
        assert np.flatnonzero(view.plain & (view["prompt"] == row)).tolist() == plain[-3:]
    before = buffer["current"].copy()
    request = view.request(np.array([1]))
    assert (request.rollouts.prompt_R == 1).all()
    view.rescore(request.uid_R, np.full(3, -9.0), 7)
    place = buffer.position(request.uid_R)
    assert (view["current"][place] == -9.0).all()
    assert (view["scored_step"][place] == 7).all()
    np.testing.assert_array_equal(view.log_ratio[place], -9.0 - buffer["behaviour"][place])
    np.testing.assert_array_equal(buffer["current"], before)
    view.forget()
    np.testing.assert_array_equal(view["current"], before)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"at": (9,)}, "--at"),
        ({"at": ()}, "--at"),
        ({"prompts": 1}, "--prompts"),
        ({"prompts": 23}, "--prompts"),
        ({"rollouts": 1}, "--rollouts"),
        ({"estimators": ("dair",)}, "--estimators"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as error:
        watch(made(tmp_path), Measurement(**{"at": (1,), "prompts": 4, **changes}))
    assert error.value.field == field


def test_a_run_without_log_probs_cannot_be_aligned(tmp_path: Path) -> None:
    trainer = made(tmp_path, preset="grpo", curriculum={"cold_start.references": 0}, max_steps=1)
    with pytest.raises(InvalidInput, match="no log-probs"):
        watch(trainer, Measurement(at=(1,), prompts=4))
    names = ("previous-fr", "posterior", "teacher")
    study = watch(trainer, Measurement(at=(1,), prompts=4, rollouts=2, estimators=names))
    trainer.train()
    (point,) = study.result(tiny.lines(tmp_path / "metrics.jsonl"))["points"]
    assert set(point["estimates"]) == {*names, "current-fr"}
    assert point["sweep"] is None
