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
from dare.state import load_state
from dare.study.estimators import ESTIMATORS, EstimatorStudy, Measurement, choose_prompts, watch
from dare.study.watchers import NewestView

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
        names = ("same", "dare", "dare-no-solutions", "dare-no-states", "paper-budget")
        found = {n: w.estimator.median().copy() for n, w in self.shadows.watchers.items()}
        self.kept = [*getattr(self, "kept", []), {"own": own, **{n: found[n] for n in names}}]


def studied(folder: Path, **changes: Any) -> tuple[Any, Snapshots, dict[str, Any]]:
    # A tenth of so few tokens would not pay for rescoring a single group.
    curriculum = {"estimator.refresh_share": 0.5, **changes.pop("curriculum", {})}
    trainer = made(folder, curriculum=curriculum, **changes)
    same = {"same": {"estimator.refresh_share": 0.5}}  # the run's own estimator, built once more
    wanted = Measurement(at=(2, STEPS), prompts=PROMPTS, rollouts=ROLLOUTS, variants=same)
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
    # Some that watch read the log-probs of every rollout: the run scores them all then.
    monkeypatch.setattr(Curriculum, "wants_scores", "all")
    alone = made(tmp_path, curriculum={"estimator.refresh_share": 0.5})
    alone.train()
    same_run(run[0], run[1], tmp_path, alone)


def test_a_study_that_reads_no_log_probs_leaves_even_the_checkpoints_alone(tmp_path: Path) -> None:
    names = ("dare", "dare-no-solutions", "dare-no-states", "previous-fr", "posterior", "judge")
    runs = []
    for name in ("watched", "alone"):
        trainer = made(tmp_path / name, max_steps=3, save_strategy="steps", save_steps=3)
        if name == "watched":
            watch(trainer, Measurement(at=(1, 3), prompts=4, rollouts=2, estimators=names))
        trainer.train()
        runs += [tmp_path / name, trainer]
    same_run(*runs)
    saved = [
        load_state(tmp_path / name / "checkpoint-3/curriculum") for name in ("watched", "alone")
    ]
    for one in saved:  # digests of lines that say how long a step took
        assert one["meta"].pop("logs")
    assert tiny.without(saved[0]["meta"], TIMING) == tiny.without(saved[1]["meta"], TIMING)
    for name, array in saved[0]["arrays"].items():
        np.testing.assert_array_equal(array, saved[1]["arrays"][name])


def same_run(folder: Path, watched: Any, other_folder: Path, alone: Any) -> None:
    for name in ("selections.jsonl", "samples.jsonl"):
        assert (folder / name).read_text("utf-8") == (other_folder / name).read_text("utf-8")
    lines = zip(*(tiny.lines(f / "metrics.jsonl") for f in (folder, other_folder)), strict=True)
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
    for found in kept:
        np.testing.assert_array_equal(found["own"], found["dare"])
        np.testing.assert_array_equal(found["own"], found["same"])
    for less in ("dare-no-solutions", "dare-no-states"):
        assert any((found["dare"] != found[less]).any() for found in kept)
    assert any((f["dare-no-solutions"] != f["dare-no-states"]).any() for f in kept)


def test_each_is_told_what_its_name_says(run: Any) -> None:
    held = {name: w.estimator.state_dict()["arrays"] for name, w in run[2].shadows.watchers.items()}
    for name, states, solutions in (
        ("dare", True, True),
        ("dare-no-solutions", True, False),
        ("dare-no-states", False, False),
    ):
        assert (held[name]["states_step"] >= 0).all() == states
        assert (held[name]["solutions_step"] >= 0).all() == solutions
        assert len(held[name]["memory_prompt"]) == len(held["dare"]["memory_prompt"]) > 0
        # Beside the intercept and the two of the trend: the length, states, solutions.
        width = 1 + states * held[name]["states"].shape[1] + solutions * 27
        assert len(held[name]["map_weight"]) == 1 + width + 2


def test_the_default_estimate_watches_another_run_with_all_that_it_reads(tmp_path: Path) -> None:
    """A run of the uniform estimator: states, solutions and lengths reach `dare`, and the paper's
    cold start is taken from the first prompts that come out."""
    trainer = made(tmp_path, preset="grpo", max_steps=2)
    assert trainer.settings.cold_start.references == 8
    names = ("dare", "dare-no-states", "paper", "paper-budget")
    study = watch(trainer, Measurement(at=(1, 2), prompts=12, rollouts=2, estimators=names))
    trainer.train()
    assert study.shadows is not None
    shadows = study.shadows
    dare = shadows.watchers["dare"].estimator.state_dict()["arrays"]
    assert (dare["states_step"] >= 0).all()
    assert (dare["solutions_step"] >= 0).all()
    groups_alone = shadows.watchers["dare-no-states"].estimator.state_dict()["arrays"]
    assert len(groups_alone["map_weight"]) == 1 + 1 + 2  # intercept, length, trend
    prior = shadows.watchers["paper"].prior_P
    assert prior is not None
    assert np.ptp(prior) > 0
    np.testing.assert_array_equal(prior, shadows.watchers["paper-budget"].prior_P)
    for point in study.points:
        unseen = ~np.array(point["seen"])
        assert unseen.any()
        for name in ("paper", "paper-budget"):
            found = np.array(point["estimates"][name])[unseen]
            assert (found != 0.5).all()
            assert len(set(found.tolist())) > 1


def test_first_comers_are_references_until_there_are_enough(tmp_path: Path) -> None:
    trainer = made(tmp_path, preset="grpo", max_steps=3, curriculum={"cold_start.references": 6})
    study = watch(trainer, Measurement(at=(3,), prompts=4, rollouts=2, estimators=("paper",)))
    trainer.train()
    assert study.shadows is not None
    drawn = [line["prompt"] for line in tiny.lines(tmp_path / "selections.jsonl")]
    taken = trainer.curriculum.prompts.ids(study.shadows._cold.arrays["prompt"])
    assert len(taken) == len(set(taken)) == 6
    assert set(drawn[0]) <= set(taken) <= {*drawn[0], *drawn[1]}


def test_a_run_without_references_still_gives_the_paper_a_cold_start(tmp_path: Path) -> None:
    curriculum = {"cold_start.references": 0}  # as the preset itself has it
    trainer = made(tmp_path, preset="grpo", max_steps=1, curriculum=curriculum)
    study = watch(trainer, Measurement(at=(1,), prompts=4, rollouts=2, estimators=("paper",)))
    trainer.train()
    assert study.shadows is not None
    assert len(study.shadows._cold.arrays["prompt"]) == np.count_nonzero(
        trainer.curriculum.visits_P
    )


def test_rescoring_for_a_shadow_is_none_of_the_runs(run: Any) -> None:
    _, trainer, study, _ = run
    assert not trainer.curriculum.estimator.rescores
    view = study.shadows.watchers["paper-budget"].view
    source = trainer.curriculum.buffer
    changed = view["scored_step"] > source["scored_step"]
    assert changed.any()
    assert not np.isnan(view["current"][changed]).any()  # -inf: outside the nucleus by now
    assert (view["current"][changed] != source["current"][changed]).any()
    budgets = [
        trainer.settings.estimator.refresh_budget(
            line["tokens"]["trained"] + line["tokens"]["generated"]
        )
        for line in tiny.lines(run[0] / "metrics.jsonl")
    ]
    assert 0 < study.shadows.watchers["paper-budget"].cost.scored <= sum(budgets)


def test_the_papers_shadow_is_a_run_of_the_papers_estimator(tmp_path: Path) -> None:
    changes = {
        "estimator.name": "paper",
        "cold_start.temperature": "paper",
        "buffer.rollouts_per_prompt": 8,
    }
    trainer, study, _ = studied(tmp_path, curriculum=changes)
    assert trainer.curriculum.estimator.rescores
    for found in study.kept:
        np.testing.assert_array_equal(found["own"], found["paper-budget"])
        assert (found["own"] != found["dare"]).any()


def test_points_hold_every_estimator_and_both_sides(run: Any) -> None:
    result = run[3]
    assert [point["step"] for point in result["points"]] == [2, STEPS]
    for point in result["points"]:
        assert set(point["estimates"]) == {*ESTIMATORS, "same"}
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
        own = study.kept[point["step"] - 1]["own"]
        found = [own[rows[name]] for name in point["prompt"]]
        assert point["estimates"]["dare"] == pytest.approx(found, abs=0)


def test_costs_go_to_those_that_cause_them(run: Any) -> None:
    folder, trainer, study, result = run
    cost = result["cost"]
    lines = tiny.lines(folder / "metrics.jsonl")
    refreshed = sum(line["tokens"]["refreshed"] for line in lines)
    # The run reads what its own estimator reads, all of it once and then some, and no more.
    everything = int(trainer.store.lengths.sum())
    solutions = sum(len(trainer.store.solution(row)) for row in range(len(trainer.store)))
    assert cost["dare"]["scored"] == refreshed
    assert cost["dare"]["once"] == everything + solutions
    assert cost["same"]["scored"] == refreshed
    assert cost["dare-no-solutions"]["once"] == everything
    assert cost["dare-no-states"]["scored"] == 0
    for name in ("dare", "dare-no-solutions", "dare-no-states", "same"):
        assert cost[name]["generated"] == 0
        assert cost[name]["seconds"] > 0
        assert cost[name]["estimates"] == STEPS * len(trainer.store)
    assert study.shadows.rescored == 0  # by the run: what is rescored for a shadow is the shadow's
    for name in ("paper", "paper-budget"):
        assert cost[name]["generated"] == 0  # its references came out anyway
        assert cost[name]["once"] == everything  # embedded
        assert cost[name]["scored"] > everything
    for name in ("previous-fr", "posterior", "uniform"):
        assert cost[name]["generated"] == cost[name]["scored"] == 0
    for name in ("teacher", "entropy", "judge", "current-fr"):
        assert cost[name]["generated"] > 0
        served = len(trainer.store) if name == "teacher" else PROMPTS
        assert cost[name]["estimates"] == 2 * served


def test_a_cold_start_and_rescoring_by_the_run_are_charged(tmp_path: Path) -> None:
    changes = {"estimator.name": "paper", "cold_start.train": False}
    _, study, result = studied(tmp_path, curriculum=changes)
    cost, lines = result["cost"], tiny.lines(tmp_path / "metrics.jsonl")
    probe = result["run_generated_tokens"] - sum(line["generated_tokens"] for line in lines)
    assert probe > 0
    refreshed = sum(line["tokens"]["refreshed"] for line in lines)
    assert study.shadows is not None
    assert study.shadows.rescored == refreshed > 0
    for name in ("paper", "paper-budget"):
        assert cost[name]["generated"] == probe  # the reference prompts of the cold start
    once = cost["paper-budget"]["once"]
    assert cost["paper-budget"]["scored"] + probe - once == refreshed
    for name in ("dare", "previous-fr", "uniform"):
        assert cost[name]["generated"] == 0
    assert cost["dare"]["scored"] > 0


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
    view.add_scores(buffer["uid"][view.plain & (view["prompt"] == 0)], np.full(3, -8.0), 8)
    assert (view["current"][place] == -9.0).all()
    assert sorted(view["current"][view.plain].tolist()) == [-9.0] * 3 + [-8.0] * 3
    view.add_scores(request.uid_R, np.full(3, -7.0), 9)
    assert sorted(view["current"][view.plain].tolist()) == [-8.0] * 3 + [-7.0] * 3
    np.testing.assert_array_equal(buffer["current"], before)
    buffer.rescore(request.uid_R, np.full(3, -6.0), 10)  # what is newer counts
    assert (view["current"][place] == -6.0).all()
    before = buffer["current"].copy()
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


def test_an_estimator_that_has_prompts_rolled_out_cannot_only_watch(tmp_path: Path) -> None:
    probing = {"probing": {"estimator.name": "current-fr"}}
    with pytest.raises(InvalidInput, match="rolled out") as error:
        watch(made(tmp_path), Measurement(at=(1,), prompts=4, variants=probing))
    assert error.value.field == "--variant"


def test_a_run_without_log_probs_is_scored_for_those_that_need_them(tmp_path: Path) -> None:
    changes = {"preset": "grpo", "curriculum": {"cold_start.references": 0}, "max_steps": 1}
    trainer = made(tmp_path / "scored", **changes)
    study = watch(trainer, Measurement(at=(1,), prompts=4, rollouts=2, estimators=("paper",)))
    trainer.train()
    buffer = trainer.curriculum.buffer
    assert buffer.has_behaviour[buffer.plain].all()
    assert max(study.points[0]["sweep"]["ess"]) > 1
    trainer = made(tmp_path, **changes)
    names = ("previous-fr", "posterior", "teacher")
    study = watch(trainer, Measurement(at=(1,), prompts=4, rollouts=2, estimators=names))
    trainer.train()
    (point,) = study.result(tiny.lines(tmp_path / "metrics.jsonl"))["points"]
    assert set(point["estimates"]) == {*names, "current-fr"}
    assert point["sweep"] is None
    assert not trainer.curriculum.buffer.has_behaviour.any()
