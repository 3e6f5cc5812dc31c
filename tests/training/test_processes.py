"""Two processes: the gradients, selections and records of one; every preset on one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from gradient_cases import PRESETS, TOLERANCE, as_saved, check_reference, run, updates
from plain_reference import HINTED, Step, tier

import ranks
import tiny
from dare.runs.checkpoint import verify
from dare.runs.folder import FILES

CASES = ("tiers", "all")
CHECKED = (*CASES, "mini-batches")
EVERY = (*CHECKED, *PRESETS)
# Presets that ask, probe or draw each in a way of its own: the others leave parts of these out.
PAIRED = [f"preset {name}" for name in ("dare", "paper", "grpo", "dapo", "dots", "edco")]
PAIRED += [f"preset {name}" for name in ("llm-judge", "current-fr", "mopps")]
BOTH = (*CHECKED, *PAIRED)
RECORDS = ("metrics.jsonl", "selections.jsonl", "samples.jsonl")
TIMING = ("seconds", "time", "memory_mb")
REPLAYS = ("dots", "edco", "llm-judge")
PROBES = ("current-fr", "dapo", "greso")  # they train on what their probes found


class Runs(NamedTuple):
    """The run folders of one process and of two, and what the reference says of the first."""

    one: Path
    two: Path
    steps: dict[str, list[Step]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Cases in one launch of two processes, then all on one, all from the same model."""
    root = tmp_path_factory.mktemp("processes")
    tiny.policy().save_pretrained(root / "model")
    script = Path(__file__).with_name("gradient_cases.py")
    (root / "two").mkdir()
    done = ranks.run(str(script), str(root / "model"), str(root / "two"), *BOTH, processes=2)
    assert done.returncode == 0, done.stderr[-4000:]
    steps = {}
    for case in EVERY:
        trainer, steps[case] = run(case, root / "one" / case)
        torch.save(as_saved(trainer, steps[case]), root / "one" / f"{case}.pt")
    return Runs(root / "one", root / "two", steps)


def saved(folder: Path, case: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{case}.pt")
    return found


def replayed(step: Step) -> int:
    return sum(group.replayed for group in step.groups)


def apart(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((value - second[name]).abs().max()) for name, value in first.items())


@pytest.mark.parametrize("case", EVERY)
def test_one_process_has_the_loss_and_the_gradient_of_the_reference(case, runs) -> None:
    check_reference(case, runs.steps[case], tiny.lines(runs.one / case / "metrics.jsonl"))


@pytest.mark.parametrize("case", CHECKED)
def test_two_processes_have_the_gradient_of_the_reference(case, runs) -> None:
    assert max(saved(runs.two, case)["distances"]) < TOLERANCE


@pytest.mark.parametrize("case", BOTH)
def test_two_processes_select_and_update_like_one(case, runs) -> None:
    one, two = (saved(folder, case) for folder in (runs.one, runs.two))
    assert len(one["gradients"]) == len(two["gradients"]) == 2 * updates(case)
    assert tiny.close(one["selections"], two["selections"], 1e-6)
    assert tiny.close(one["difficulty"], two["difficulty"], 1e-5)
    for alone, together in zip(one["gradients"], two["gradients"], strict=True):
        assert apart(alone, together) < TOLERANCE
    assert apart(one["weights"], two["weights"]) < TOLERANCE
    # Far above the tolerance, or the comparison would say nothing.
    assert apart(one["weights"], tiny.policy().state_dict()) > 5e-3


@pytest.mark.parametrize("case", PRESETS)
def test_a_preset_did_what_it_is_there_for(case, runs) -> None:
    preset = case.removeprefix("preset ")
    steps = runs.steps[case]
    groups = [group for step in steps for group in step.groups]
    tiers = {tier(group.difficulty) for group in groups}
    hinted = any(r.conditioning == HINTED for group in groups for r in group.rollouts)
    drift = max(abs(ratio - 1.0) for step in steps for ratio in step.ratios)
    easy = preset in ("paper", "paper-release") or preset.endswith("+easy")
    hard = preset in ("paper", "paper-release") or preset.endswith("+hard")
    if easy or hard or preset.startswith("grpo+"):  # an ablation sees the tier that it leaves alone
        assert tiers == {"easy", "medium", "hard"}
    assert hinted == hard
    assert any(replayed(step) for step in steps) == (preset in (*REPLAYS, *PROBES))
    # The ratio is 1 where a step trains on what its own policy sampled from the bare prompt.
    assert (drift > 0.2) == (hard or preset in REPLAYS)
    guessed = {0.5} == set(saved(runs.one, case)["difficulty"])
    assert guessed == (preset == "grpo")
    assert easy or hard or {len(group.rollouts) for group in groups} == {8}


@pytest.mark.parametrize(
    ("case", "name"),
    [(case, name) for case in CHECKED for name in FILES]
    + [(case, name) for case in PAIRED for name in RECORDS],
)
def test_the_run_folder_is_written_once(case, name, runs) -> None:
    one, two = (tiny.lines(folder / case / name) for folder in (runs.one, runs.two))
    assert len(one) == len(two) > 0
    for alone, together in zip(one, two, strict=True):
        assert tiny.close(tiny.without(alone, TIMING), tiny.without(together, TIMING), 1e-4)


@pytest.mark.parametrize("case", CASES)
def test_the_checkpoint_of_two_processes_is_whole(case, runs) -> None:
    names = [
        {str(path.relative_to(folder / case)) for path in (folder / case).rglob("*")}
        for folder in (runs.one, runs.two)
    ]
    assert verify(runs.two / case / "checkpoint-2") is None
    states = {f"checkpoint-2/rng_state_{rank}.pth" for rank in range(2)}
    assert names[1] - names[0] == states
    assert names[0] - names[1] == {"checkpoint-2/rng_state.pth"}
