"""Studies end to end, small: killed, interrupted and failing runs, and what is refused at once."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
import yaml
from forked import started, wait_for

import tiny
from dare import InvalidInput, cli
from dare.runs.folder import sole
from dare.study import runner, worker
from dare.study.jobs import SEED, Job
from dare.study.methods import Arm, Study, arms_of, grid
from dare.study.single import train

RECIPE: dict[str, Any] = {
    "model": "pocket",
    "data": {"tasks": {"count": 24, "seed": 0}},
    "eval_data": {"tasks": {"count": 4, "seed": 1, "split": "test"}},
    "reward": "paced:reward",
    "training": {
        "max_steps": 2,
        "learning_rate": 1e-4,
        "per_device_train_batch_size": 16,
        "rollout_budget": 16,
        "max_completion_length": 8,
        "temperature": 1.0,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "eval_on_start": True,
        "save_steps": 1,
    },
    "curriculum": {"cold_start.references": 0, "medium.group_size": 8, "fresh_share": 1.0},
}
TOKENS = 500


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    return str(path)


def free(folder: Path) -> bool:
    """Whether no process holds the run."""
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


class Inside:
    """Stands for the process of a run and does its work in this one.

    For what is not about processes: each would spend many times longer on imports than on the run.
    """

    def __init__(self, command: list[str], stdout: Any, **_: Any) -> None:
        self.stdin = io.BytesIO()
        with contextlib.redirect_stdout(io.TextIOWrapper(io.FileIO(stdout.fileno(), "w", False))):
            self.returncode = worker.run(Path(command[-1]))

    def poll(self) -> int:
        return self.returncode


def start_with(process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the study start its runs as `process` instead of a subprocess."""
    monkeypatch.setattr(runner, "subprocess", SimpleNamespace(Popen=process, PIPE=None))


def test_a_killed_study_repeats_nothing_that_was_finished(
    recipe: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "study"
    # The first run is over when the second is caught in the middle.
    arms = ["short=grpo", "long=previous-fr"]
    study = Study(arms_of([], arms), out, seeds=1, tokens=TOKENS, recipe=recipe)
    short, long = study.jobs()
    ended = forked.run("killed", out, recipe, TOKENS, 0, *arms)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert short.done
    assert started(long.folder)
    wait_for(lambda: free(long.folder))  # the run left with its study
    assert not long.done
    before = {path: path.stat().st_mtime_ns for path in short.folder.rglob("*")}
    log = short.log.stat().st_mtime_ns

    start_with(Inside, monkeypatch)
    outcome = study.run()
    assert outcome.kept == [short]
    assert outcome.done == [long]
    assert not outcome.failed
    assert {path: path.stat().st_mtime_ns for path in short.folder.rglob("*")} == before
    assert short.log.stat().st_mtime_ns == log
    assert long.log.read_text("utf-8").startswith("resuming")

    # What it resumed is the run that was never interrupted, up to the budget and not further.
    train(long.recipe, tmp_path / "whole", long.tokens)
    for name in ("selections.jsonl", "eval.jsonl"):
        assert tiny.lines(long.folder / name) == tiny.lines(tmp_path / "whole" / name)
    totals = [line["generated_tokens_total"] for line in tiny.lines(long.folder / "metrics.jsonl")]
    assert totals[-2] < TOKENS <= totals[-1]
    assert not started(long.folder)

    start_with(None, monkeypatch)  # the command finds nothing left to start
    command = ["dare", "study", "methods", "--presets", "", "--arm", arms[0], "--arm", arms[1]]
    command += ["--seeds", "1", "--tokens", str(TOKENS), "--recipe", recipe, "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*command, "--trust", "--json"])
    monkeypatch.setenv("PATH", "/nowhere")  # no browser: this is not about pictures
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert list(json.loads(capsys.readouterr().out)["methods"]) == ["short", "long"]


def test_an_interrupted_study_saves_and_a_failing_run_stops_no_other(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def study(*arms: str) -> Study:
        out = tmp_path / "study"
        return Study(arms_of([], arms), out, seeds=1, tokens=TOKENS, recipe=recipe, truth=True)

    arms = ["bad=grpo --reward paced:broken", "good=grpo"]
    bad, good = study(*arms).jobs()
    ended = forked.run("interrupted", tmp_path / "study", recipe, TOKENS, 1, *arms)
    assert ended.returncode == 0, ended.stderr
    failed, interrupted = json.loads(ended.stdout.splitlines()[-1])
    assert [folder for folder, _ in failed] == [str(bad.folder)]
    assert "the verifier is on holiday" in failed[0][1]
    assert interrupted == [str(good.folder)]
    assert started(good.folder)
    assert free(good.folder)

    start_with(Inside, monkeypatch)
    outcome = study("good=grpo").run()
    assert outcome.done == [good]
    assert good.log.read_text("utf-8").startswith("resuming")
    assert json.loads((good.folder / "estimation.json").read_text("utf-8"))["prompts"] > 0


def test_runs_not_started_when_it_stops_are_left_for_the_next_time(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(arms_of(["grpo", "dare"]), tmp_path, seeds=1, tokens=TOKENS, recipe=recipe)

    class Stopped:
        def __init__(self, command: list[str], **_: Any) -> None:
            self.stdin, self.returncode = io.BytesIO(), -signal.SIGTERM
            os.kill(os.getpid(), signal.SIGINT)

        def poll(self) -> int:
            return self.returncode

        def terminate(self) -> None:
            pass

    start_with(Stopped, monkeypatch)
    assert study.run().interrupted == study.jobs()


def test_workers_run_side_by_side_each_on_its_device(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(arms_of(["grpo"]), tmp_path, seeds=5, tokens=TOKENS, recipe=recipe)
    active: list[str] = []
    together: list[list[str]] = []

    class Brief:
        """A run that is over when it has been looked at twice."""

        def __init__(self, command: list[str], env: dict[str, str], **_: Any) -> None:
            self.job = Job.load(Path(command[-1]))
            self.device, self.stdin, self.looks = env["CUDA_VISIBLE_DEVICES"], io.BytesIO(), 0
            self.returncode: int | None = None
            active.append(self.device)
            together.append(sorted(active))

        def poll(self) -> int | None:
            self.looks += 1
            if self.looks == 2:
                active.remove(self.device)
                self.job.finish({})
                self.returncode = 0
            return self.returncode

    start_with(Brief, monkeypatch)
    outcome = study.run(workers=2, devices=["3", "7"])
    assert outcome.done == study.jobs()
    assert together == [["3"], ["3", "7"]] * 2 + [["3"]]


def test_a_folder_with_another_study_is_refused(recipe: str, tmp_path: Path) -> None:
    def study(**changes: Any) -> Study:
        settings = {"arms": arms_of(["grpo"]), "seeds": 1, "tokens": 300, "recipe": recipe}
        return Study(**{"out": tmp_path / "study", **settings, **changes})

    (job,) = study().jobs()
    job.prepare()
    assert study().jobs() == [job]
    with pytest.raises(InvalidInput, match=r"tokens = 300, now 400, .*; choose another --out"):
        study(tokens=400).jobs()
    with pytest.raises(InvalidInput, match=r"recipe\.training\.learning_rate = 0\.0001, now 1e-05"):
        study(options=["--learning-rate", "1e-5"]).jobs()
    file = job.folder / "job.json"
    written = file.read_text("utf-8")
    assert '"kappa": 16.0' in written
    # As if an earlier version had had another default.
    file.write_text(written.replace('"kappa": 16.0', '"kappa": 9.0'), "utf-8")
    with pytest.raises(InvalidInput, match=r"settings\.selection\.kappa = 9\.0, now 16\.0"):
        study().jobs()
    file.write_text(written, "utf-8")
    taken = pytest.raises(InvalidInput, match=r"--out .* is being written by another thread")
    with sole(tmp_path / "study"), ThreadPoolExecutor(1) as other, taken:
        other.submit(study().run).result()
    (tmp_path / "study" / "dare" / "seed-0").mkdir(parents=True)
    (tmp_path / "study" / "dare" / "seed-0" / "thesis.tex").touch()
    with pytest.raises(InvalidInput, match="no study wrote"):
        study(arms=arms_of(["dare"])).jobs()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"arms": [Arm("x", "dare", ("--selection.kapa", "8"))]}, "selection.kapa"),
        ({"arms": [Arm("x", "dare", ("--selection.kappa", "-1"))]}, "selection.kappa"),
        ({"options": ["--lr-scheduler-type", "cosine"]}, "lr_scheduler_type"),
        ({"options": ["--warmup-steps", "0.1"]}, "warmup_steps"),
        ({"options": ["--eval-data", "null"]}, "eval_data"),
        ({"options": ["--seed", "3"]}, "use --seeds"),
        ({"seeds": 0}, "--seeds"),
        ({"tokens": None}, "--tokens"),
        ({"tokens": 0}, "tokens"),
        ({"recipe": "quickstrat"}, "quickstart"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(
    recipe: str, tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    settings = {"arms": arms_of(["grpo"]), "tokens": 100, "recipe": recipe, **changes}
    with pytest.raises(InvalidInput, match=match):
        Study(out=tmp_path / "study", **settings).run()
    assert not (tmp_path / "study").exists()


def test_seeds_and_arms_make_the_jobs_and_steps_suffice(recipe: str, tmp_path: Path) -> None:
    arms = arms_of(["grpo"], ["flat=dare --tiers false"])
    jobs = Study(arms, tmp_path, seeds=2, tokens=9000, recipe=recipe).jobs()
    assert [job.title for job in jobs] == [
        "grpo, seed 0",
        "flat, seed 0",
        "grpo, seed 1",
        "flat, seed 1",
    ]
    assert jobs[3].recipe["curriculum"]["tiers"] is False
    assert jobs[3].recipe["training"]["seed"] == 1
    later = Study(arms[:1], tmp_path, seeds=2, tokens=9000, recipe=recipe, first_seed=100).jobs()
    assert [job.folder.name for job in later] == ["seed-100", "seed-101"]
    # Sixteen rollouts of a single token each would still get there.
    assert jobs[0].recipe["training"]["max_steps"] * 16 > 9000


@pytest.mark.parametrize("text", ["dare", "=dare", "a b=dare", "../x=dare", "x=", "x=daer"])
def test_an_arm_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Arm.parse(text)


def test_names_of_arms_are_unique() -> None:
    with pytest.raises(InvalidInput, match="named twice"):
        arms_of(["dare"], ["dare=paper"])
    with pytest.raises(InvalidInput, match="at least one"):
        arms_of([])


def test_a_sweep_has_an_arm_a_value_and_a_grid_every_pair() -> None:
    (small, large) = grid("dare", ["kappa"], ["8,32"])
    assert small == Arm("selection.kappa=8", "dare", ("--selection.kappa", "8"))
    assert large.name == "selection.kappa=32"
    pairs = grid("paper", ["lambda_easy", "lambda_hard"], ["0,1e-4", "0,1e-4,2e-4"])
    assert len(pairs) == 6
    assert pairs[1].name == "easy.length_penalty=0,hard.length_bonus=1e-4"
    assert grid("dare", ["tau_ESS"], ["2"])[0].options == (
        "--estimator.name",
        "paper",
        "--estimator.ess_threshold",
        "2",
    )
    for fields, values in (
        (["kappa"], ["8,8"]),
        (["kappa"], [""]),
        (["kappa", "selection.kappa"], ["1", "2"]),
        (["kappa"], ["1", "2"]),
        ([], []),
    ):
        with pytest.raises(InvalidInput):
            grid("dare", fields, values)


def test_what_is_trusted_is_run_by_processes_that_do_not_ask(recipe: str, tmp_path: Path) -> None:
    words = f"--presets grpo --seeds 1 --tokens 100 --recipe {recipe} --out {tmp_path / 'study'}"
    ended = forked.run("dare", "study", "methods", *words.split(), "--trust")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "study" / "grpo" / "seed-0" / "done.json").is_file()


def test_a_folder_says_nothing_of_what_is_run(recipe: str, tmp_path: Path) -> None:
    job = Study(arms_of(["grpo"]), tmp_path / "study", 1, TOKENS, recipe).jobs()[0]
    job.prepare()
    (job.folder / SEED).write_text('{"recipe": {"reward": "theirs:reward"}}', encoding="utf-8")
    job.check()
    job.prepare()
    assert not (job.folder / SEED).exists()


def test_the_sweep_command_runs_and_prints_its_grid(
    recipe: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no browser: this is not about pictures
    start_with(Inside, monkeypatch)
    out = tmp_path / "sweep"
    command = "dare study sweep --field K --values 8 --field selection.eta --values 0,0.5"
    more = f"--preset grpo+snis --seeds 1 --tokens 150 --workers 2 --recipe {recipe} --out {out}"
    words = [*command.split(), *more.split(), "--trust", "--reward", "boxed"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    shown = capsys.readouterr().out
    assert "accuracy: buffer.rollouts_per_prompt (rows) x selection.eta (columns)" in shown
    figures = json.loads((out / "compare" / "compare.json").read_text("utf-8"))
    names = [f"buffer.rollouts_per_prompt=8,selection.eta={eta}" for eta in ("0", "0.5")]
    assert list(figures["methods"]) == names
