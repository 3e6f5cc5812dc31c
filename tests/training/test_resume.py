"""A run that was interrupted and resumed is the run that was not, bit for bit."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest
import torch
import transformers
from transformers import TrainerCallback

import ranks
import tiny
from dare import InvalidInput
from dare.runs import checkpoint
from dare.runs.folder import FILES

TIMING = ("seconds", "time", "memory_mb")
STEPS = 5
BASE: dict[str, Any] = {
    "max_steps": STEPS,
    "save_strategy": "steps",
    "save_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "eval_data": tiny.problems(0.5),
    "rollout_budget": 48,
    "per_device_train_batch_size": 24,
    "curriculum": {"fresh_share": 0.6, "selection.eta": 0.5},
    "reward": tiny.patchy,
    "beta": 0.05,
}


def outcome(folder: Path, trainer: Any) -> dict[str, Any]:
    """Everything a run leaves behind, less what a clock or the memory decides."""
    found: dict[str, Any] = {
        name: [tiny.without(line, TIMING) for line in tiny.lines(folder / name)] for name in FILES
    }
    found["difficulty"] = pyarrow.parquet.read_table(folder / "difficulty.parquet").to_pydict()
    found["weights"] = {n: v.tolist() for n, v in trainer.model.state_dict().items()}
    history = [
        tiny.without(entry, ("curriculum/memory_mb", "step_time"))
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]
    found["history"] = history
    return found


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    for name in first:
        assert first[name] == second[name], name


class Crash(Exception):
    """The machine went away."""


class CrashAt(TrainerCallback):
    """Raises in an event of one step."""

    def __init__(self, event: str, step: int) -> None:
        def fail(args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == step:
                raise Crash

        setattr(self, event, fail)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    trainer = tiny.trainer(folder, **BASE)
    trainer.train()
    return outcome(folder, trainer)


def resumed(folder: Path, **changes: Any) -> Any:
    trainer = tiny.trainer(folder, **{**BASE, **changes})
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == STEPS
    return trainer


@pytest.mark.parametrize(
    ("event", "step"),
    [
        ("on_step_begin", 2),  # right after a checkpoint
        ("on_pre_optimizer_step", 3),  # rolled out, not yet updated
        ("on_step_end", 4),  # updated, not yet saved
        ("on_save", 4),  # just saved
        ("on_evaluate", 4),  # evaluated, not yet saved
        ("on_train_end", 5),  # all but over
    ],
)
def test_a_crash_at_any_moment_leaves_no_trace(event, step, whole, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, callbacks=[CrashAt(event, step)], **BASE)
    with pytest.raises(Crash):
        trainer.train()
    assert_same(whole, outcome(tmp_path, resumed(tmp_path)))


@pytest.mark.parametrize("where", ["save_state", "checkpoint.seal", "checkpoint.rotate"])
def test_a_crash_while_a_checkpoint_is_written(where, whole, tmp_path, monkeypatch) -> None:
    calls: list[int] = []

    def second_time_fails(real: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise Crash
            return real(*given, **named)

        return call

    target, name = {
        "save_state": ("dare.training.checkpoints", "save_state"),
        "checkpoint.seal": ("dare.runs.checkpoint", "seal"),
        "checkpoint.rotate": ("dare.runs.checkpoint", "rotate"),
    }[where]
    module = __import__(target, fromlist=["x"])
    with monkeypatch.context() as patch:
        patch.setattr(module, name, second_time_fails(getattr(module, name)))
        with pytest.raises(Crash):
            tiny.trainer(tmp_path, **BASE).train()
    assert_same(whole, outcome(tmp_path, resumed(tmp_path)))
    assert not list(tmp_path.glob(".stage-*"))


def test_a_damaged_checkpoint_is_passed_over_and_replaced(whole, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        tiny.trainer(tmp_path, callbacks=[CrashAt("on_step_begin", 4)], **BASE).train()
    weights = tmp_path / "checkpoint-4" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-7] ^= 1
    weights.write_bytes(content)
    assert checkpoint.newest(tmp_path) == tmp_path / "checkpoint-2"
    assert_same(whole, outcome(tmp_path, resumed(tmp_path)))
    assert checkpoint.verify(tmp_path / "checkpoint-4") is None


def test_resuming_twice_and_from_a_named_checkpoint(whole, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        tiny.trainer(tmp_path, callbacks=[CrashAt("on_step_begin", 3)], **BASE).train()
    with pytest.raises(Crash):
        resumed(tmp_path, callbacks=[CrashAt("on_step_end", 5)])
    trainer = tiny.trainer(tmp_path, **BASE)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert_same(whole, outcome(tmp_path, trainer))


def test_the_weights_that_the_trainer_was_built_with_do_not_matter(whole, tmp_path: Path) -> None:
    changes = {"beta": 0.0}
    expected = tiny.trainer(tmp_path / "whole", **{**BASE, **changes})
    expected.train()
    crash = [CrashAt("on_step_begin", 3)]
    cut = tiny.trainer(tmp_path / "cut", callbacks=crash, **{**BASE, **changes})
    with pytest.raises(Crash):
        cut.train()
    other = resumed(tmp_path / "cut", model=tiny.blank(), **changes)
    assert_same(outcome(tmp_path / "whole", expected), outcome(tmp_path / "cut", other))


@pytest.mark.parametrize("preset", ["paper", "mopps", "previous-fr", "current-fr"])
def test_other_presets_resume_too(preset: str, tmp_path: Path) -> None:
    changes = {**BASE, "preset": preset, "max_steps": 4, "beta": 0.0}
    if preset != "paper":
        changes["curriculum"] = {"cold_start.references": 0}
    runs = []
    for name in ("whole", "cut"):
        crash = [CrashAt("on_step_begin", 3)] if name == "cut" else None
        trainer = tiny.trainer(tmp_path / name, callbacks=crash, **changes)
        if crash:
            with pytest.raises(Crash):
                trainer.train()
            trainer = tiny.trainer(tmp_path / name, **changes)
            trainer.train(resume_from_checkpoint=True)
        else:
            trainer.train()
        runs.append(outcome(tmp_path / name, trainer))
    assert_same(*runs)


UPDATES: dict[str, Any] = {
    **BASE,
    "max_steps": 12,
    "num_iterations": 2,
    "per_device_train_batch_size": 12,
    "steps_per_generation": 4,
    "gradient_accumulation_steps": 2,
    "loss_type": "dapo",
}


@pytest.fixture(scope="module")
def whole_updates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("updates")
    trainer = tiny.trainer(folder, **UPDATES)
    trainer.train()
    assert trainer.curriculum.step == 3
    return outcome(folder, trainer)


@pytest.mark.parametrize(
    ("event", "step"),
    [
        ("on_pre_optimizer_step", 5),  # one of four updates of the second step is done
        ("on_step_end", 7),  # three are
        ("on_save", 8),  # just saved
    ],
)
def test_a_crash_between_the_updates_of_a_step_leaves_no_trace(
    event, step, whole_updates, tmp_path: Path
) -> None:
    trainer = tiny.trainer(tmp_path, callbacks=[CrashAt(event, step)], **UPDATES)
    with pytest.raises(Crash):
        trainer.train()
    trainer = tiny.trainer(tmp_path, **UPDATES)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 12
    assert_same(whole_updates, outcome(tmp_path, trainer))


def test_a_signal_between_two_updates_finishes_the_step(whole_updates, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, callbacks=[Signal(signal.SIGTERM, 5)], **UPDATES)
    with pytest.raises(SystemExit):
        trainer.train()
    assert trainer.state.global_step == 8
    assert checkpoint.newest(tmp_path) == tmp_path / "checkpoint-8"
    trainer = tiny.trainer(tmp_path, **UPDATES)
    trainer.train(resume_from_checkpoint=True)
    assert_same(whole_updates, outcome(tmp_path, trainer))


# --- a polite stop --------------------------------------------------------------------------------


class Signal(TrainerCallback):
    """Sends this process a signal in the middle of a step."""

    def __init__(self, number: int, step: int, times: int = 1) -> None:
        self.number, self.step, self.times = number, step, times

    def on_pre_optimizer_step(self, args, state, control, **_) -> None:
        if state.global_step == self.step:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_stops_and_resumes(number, whole, tmp_path: Path, capfd) -> None:
    before = signal.getsignal(number)
    trainer = tiny.trainer(tmp_path, callbacks=[Signal(number, 2)], **BASE)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as end:
        trainer.train()
    assert end.value.args == (() if number == signal.SIGINT else (143,))
    assert trainer.stopped_by == number
    assert trainer.state.global_step == 3  # the step in flight was finished
    assert checkpoint.newest(tmp_path) == tmp_path / "checkpoint-3"
    assert len(tiny.lines(tmp_path / "metrics.jsonl")) == 3
    how = f"trainer.train(resume_from_checkpoint=True) and output_dir='{tmp_path}'"
    assert f"stopped at step 3 of 5: {how}\n" in capfd.readouterr().err
    assert signal.getsignal(number) is before
    assert_same(whole, outcome(tmp_path, resumed(tmp_path)))


def test_a_signal_in_the_last_step_changes_nothing(whole, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, callbacks=[Signal(signal.SIGINT, STEPS - 1)], **BASE)
    trainer.train()
    assert trainer.stopped_by == 0
    assert_same(whole, outcome(tmp_path, trainer))


SCRIPT = """
import os, signal, sys
import tiny
from transformers import TrainerCallback

class Signal(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **_):
        if state.global_step == 1 and args.process_index == 1:
            os.kill(os.getpid(), int(sys.argv[2]))

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
batch = {"rollout_budget": 48, "per_device_train_batch_size": 12}
trainer = tiny.trainer(sys.argv[1], callbacks=[Signal()], max_steps=4, **batch)
try:
    trainer.train()
    print("went on", flush=True)
except BaseException as error:  # else the launcher ends the other process by the first's code
    print(f"ended by {error!r}", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_processes_of_a_script_end_where_one_had_a_signal(number, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [str(tmp_path / "script.py"), str(tmp_path / "run"), str(int(number))]
    variables = {"PYTHONPATH": os.pathsep.join([str(Path(tiny.__file__).parent), *sys.path])}
    done = ranks.run(*words, processes=2, variables=variables, timeout=300)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    ends = {signal.SIGTERM: "SystemExit(143)", signal.SIGINT: "KeyboardInterrupt()"}
    assert done.stdout.count(f"ended by {ends[number]}\n") == 2, said
    assert "went on" not in said
    assert said.count("stopped at step 2 of 4: ") == 1, said
    assert checkpoint.newest(tmp_path / "run") == tmp_path / "run" / "checkpoint-2"


def test_a_second_signal_stops_at_once(whole, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)  # a background job starts with it ignored
    trainer = tiny.trainer(tmp_path, callbacks=[Signal(signal.SIGINT, 3, times=2)], **BASE)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert checkpoint.newest(tmp_path) == tmp_path / "checkpoint-2"
    assert signal.getsignal(signal.SIGINT) is before
    assert_same(whole, outcome(tmp_path, resumed(tmp_path)))


def test_an_interruption_at_any_moment_changes_nothing() -> None:
    # A few of each kind that benchmarks/kill_resume.py has; it forks a process for every attempt.
    words = ["--kills", "2", "--operations", "2", "--sigterm", "1", "--sigint", "1", "--steps", "4"]
    script = Path(__file__).parents[2] / "benchmarks" / "kill_resume.py"
    done = ranks.run(str(script), *words, "--seed", "4", folder=script.parent)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    for kind, times in (("kill", 2), ("operation", 2), ("sigterm", 1), ("sigint", 1)):
        assert result[kind]["times"] == result[kind]["identical"] == times
    assert result["operations_of_a_save"] > 40


# --- what is refused ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Crash):
        tiny.trainer(folder, callbacks=[CrashAt("on_step_begin", 2)], **BASE).train()
    return folder


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("prompts", {"data": tiny.problems(0.95, 0.5, 0.2, each=5)}),
        ("selection.rest", {"curriculum": {**BASE["curriculum"], "selection.rest": 3}}),
        ("rollout_budget", {"rollout_budget": 96}),
        ("seed", {"seed": 9}),
        ("medium.group_size", {"num_generations": 6}),
        ("max_tokens", {"max_completion_length": 9}),
    ],
)
def test_other_data_or_settings_are_refused_by_name(name, changes, stopped, tmp_path) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    trainer = tiny.trainer(tmp_path, **{**BASE, **changes})
    with pytest.raises(InvalidInput, match=re.escape(name)) as caught:
        trainer.train(resume_from_checkpoint=True)
    assert caught.value.field == name
    # And nothing was lost: with the old settings the run goes on.
    assert len(tiny.lines(tmp_path / "metrics.jsonl")) == 2


def test_a_folder_with_checkpoints_is_not_started_over(stopped: Path) -> None:
    with pytest.raises(InvalidInput, match="output_dir"):
        tiny.trainer(stopped, **BASE).train()


@pytest.mark.parametrize(
    ("name", "value"),
    [("learning_rate", 2e-3), ("weight_decay", 0.1), ("adam_beta2", 0.9), ("optim", "adafactor")],
)
def test_what_the_optimisers_state_overrides_is_refused(name, value, stopped, tmp_path) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InvalidInput, match="goes on with its optimiser") as caught:
        tiny.trainer(tmp_path, **{**BASE, name: value}).train(resume_from_checkpoint=True)
    assert caught.value.field == name
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("lr_scheduler_kwargs", {"lr_scheduler_type": "cosine_with_min_lr"}),  # needs a rate
        ("lr_scheduler_kwargs.rise", {"lr_scheduler_kwargs": {"rise": 1}}),
        ("num_iterations", {"num_iterations": 5}),
        ("rollout_budget", {"rollout_budget": 96}),
    ],
)
def test_a_refused_start_changes_nothing(field, changes, stopped, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 7}\n')  # to be rewound
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InvalidInput) as caught:
        tiny.trainer(tmp_path, **{**BASE, **changes}).train(resume_from_checkpoint=True)
    assert caught.value.field == field
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_older_checkpoint_by_name_leaves_the_branch_behind(whole, tmp_path: Path) -> None:
    often = {**BASE, "save_steps": 1, "save_total_limit": 3}
    tiny.trainer(tmp_path, **often).train()
    crash = [CrashAt("on_step_begin", 3)]
    trainer = tiny.trainer(tmp_path, callbacks=crash, **often)
    with pytest.raises(Crash):  # before it has saved anything of its own
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert checkpoint.newest(tmp_path) == tmp_path / "checkpoint-3"
    crash = [CrashAt("on_step_begin", 4)]
    with pytest.raises(Crash):
        tiny.trainer(tmp_path, callbacks=crash, **often).train(resume_from_checkpoint=True)
    assert checkpoint.newest(tmp_path) == tmp_path / "checkpoint-4"
    assert not list(tmp_path.glob(".aside-*"))
    assert_same(whole, outcome(tmp_path, resumed(tmp_path, save_steps=1, save_total_limit=3)))
    kept = [path.name for path in checkpoint.checkpoints(tmp_path)]
    assert kept == ["checkpoint-5", "checkpoint-4", "checkpoint-3"]


def test_a_damaged_newer_checkpoint_does_not_crowd_out_a_new_one(tmp_path: Path) -> None:
    often = {**BASE, "save_steps": 1, "save_total_limit": 2}
    tiny.trainer(tmp_path, **often).train()
    (tmp_path / "checkpoint-5" / "optimizer.pt").unlink()
    crash = [CrashAt("on_step_begin", 5)]
    with pytest.raises(Crash):
        tiny.trainer(tmp_path, callbacks=crash, **{**often, "max_steps": 6}).train(
            resume_from_checkpoint=True
        )
    assert checkpoint.newest(tmp_path) == tmp_path / "checkpoint-5"


def test_a_resumed_run_has_no_evaluation_more(tmp_path: Path) -> None:
    changes = {**BASE, "eval_on_start": True}
    tiny.trainer(tmp_path / "whole", **changes).train()
    with pytest.raises(SystemExit):
        tiny.trainer(tmp_path / "cut", callbacks=[Signal(signal.SIGTERM, 2)], **changes).train()
    trainer = tiny.trainer(tmp_path / "cut", **changes)
    trainer.train(resume_from_checkpoint=True)
    lines = [tiny.lines(tmp_path / name / "eval.jsonl") for name in ("whole", "cut")]
    assert [line["step"] for line in lines[0]] == [0, 2, 4, 5]
    assert lines[0] == lines[1]
    assert trainer.args.eval_on_start  # the setting itself stands, in config.yaml too
    held = [(tmp_path / name / "config.yaml").read_text() for name in ("whole", "cut")]
    assert held[0] == held[1].replace(str(tmp_path / "cut"), str(tmp_path / "whole"))


class FullDisk(TrainerCallback):
    """No file of this process may grow beyond so many bytes, from one step on."""

    def __init__(self, limit: int, step: int) -> None:
        self.limit, self.step = limit, step

    def on_step_begin(self, args, state, control, **_) -> None:
        if state.global_step == self.step:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, hard))


@pytest.mark.parametrize("limit", [60_000, 150_000])  # the weights, the optimiser's state
def test_a_checkpoint_that_does_not_fit_on_the_disk(limit, whole, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    trainer = tiny.trainer(tmp_path, callbacks=[FullDisk(limit, 3)], **BASE)
    try:
        with pytest.raises(InvalidInput, match="checkpoint-4 could not be written") as caught:
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.field == "output_dir"
    assert "checkpoint-2 is intact" in caught.value.fix
    assert [path.name for path in tmp_path.glob("*-*")] == ["checkpoint-2"]
    assert not list(tmp_path.glob(".*"))
    assert_same(whole, outcome(tmp_path, resumed(tmp_path)))


@pytest.mark.parametrize(
    ("place", "number"),
    [
        ("os.fsync", errno.EIO),
        ("os.rename", errno.EROFS),
        ("os.mkdir", errno.EDQUOT),
        ("torch.save", errno.EIO),
        ("dare.state.save_file", errno.ENOSPC),
        ("transformers.modeling_utils.safe_save_file", errno.EMFILE),
    ],
)
def test_a_disk_that_fails_in_a_save_is_one_line(
    place, number, whole, tmp_path: Path, monkeypatch
) -> None:
    class Fails(TrainerCallback):
        def on_step_begin(self, args, state, control, **_) -> None:
            if state.global_step == 3:

                def fail(*_: Any, **__: Any) -> None:
                    raise OSError(number, os.strerror(number))

                monkeypatch.setattr(place, fail)

    with pytest.raises(InvalidInput, match="checkpoint-4 could not be written") as caught:
        tiny.trainer(tmp_path, callbacks=[Fails()], **BASE).train()
    monkeypatch.undo()
    assert caught.value.field == "output_dir"
    assert os.strerror(number) in caught.value.fix
    assert "checkpoint-2 is intact" in caught.value.fix
    assert [path.name for path in tmp_path.glob("*-*")] == ["checkpoint-2"]
    assert_same(whole, outcome(tmp_path, resumed(tmp_path)))


def test_there_must_be_a_checkpoint_to_resume_from(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="resume_from_checkpoint"):
        tiny.trainer(tmp_path, **BASE).train(resume_from_checkpoint=True)


def test_a_run_that_died_before_its_first_checkpoint_starts_over_cleanly(
    whole, tmp_path: Path
) -> None:
    with pytest.raises(Crash):
        tiny.trainer(tmp_path, callbacks=[CrashAt("on_step_begin", 1)], **BASE).train()
    trainer = tiny.trainer(tmp_path, **BASE)
    trainer.train()
    assert_same(whole, outcome(tmp_path, trainer))


def test_a_longer_run_continues_a_shorter_one(whole, tmp_path: Path) -> None:
    tiny.trainer(tmp_path, **{**BASE, "max_steps": 4}).train()
    trainer = resumed(tmp_path)
    weights = {n: v.tolist() for n, v in trainer.model.state_dict().items()}
    assert weights == whole["weights"]
    assert len(tiny.lines(tmp_path / "metrics.jsonl")) == STEPS


def test_torch_draws_are_restored_too(tmp_path: Path) -> None:
    model = tiny.blank(attention_dropout=0.3)
    runs = []
    for name in ("whole", "cut"):
        changes = {**BASE, "model": None, "max_steps": 3, "beta": 0.0}
        changes["model"] = tiny.blank(attention_dropout=0.3)
        crash = [CrashAt("on_step_begin", 2)] if name == "cut" else None
        trainer = tiny.trainer(tmp_path / name, callbacks=crash, **changes)
        if crash:
            with pytest.raises(Crash):
                trainer.train()
            changes["model"] = tiny.blank(attention_dropout=0.3)
            trainer = tiny.trainer(tmp_path / name, **changes)
            trainer.train(resume_from_checkpoint=True)
        else:
            trainer.train()
        runs.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], start)


def test_tied_weights_are_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are saved once, so that the second is no loss; any other that is gone is told of."""
    given = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    tiny.trainer(tmp_path, model=tiny.blank(tie_word_embeddings=True), **given).train()
    told: list[str] = []
    monkeypatch.setattr(transformers.trainer.logger, "warning", lambda text, *_: told.append(text))
    again = tiny.trainer(
        tmp_path, model=tiny.blank(tie_word_embeddings=True), **{**given, "max_steps": 2}
    )
    again.train(resume_from_checkpoint=True)
    assert [line for line in told if "missing keys" in line] == []
    weights = again.model.state_dict()
    assert weights["lm_head.weight"].equal(weights["model.embed_tokens.weight"])
    lost = SimpleNamespace(missing_keys=["lm_head.weight", "model.norm.weight"], unexpected_keys=[])
    again._issue_warnings_after_load(lost)
    assert "['model.norm.weight']" in told[-1]


def test_a_resumed_run_that_samples_otherwise_says_so(tmp_path: Path, caplog: Any) -> None:
    saved: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
    tiny.trainer(tmp_path, max_steps=1, temperature=0.6, **saved).train()
    for now, norm, told in ((0.6, 1.0, 0), (0.7, 0.5, 2)):
        caplog.clear()
        changed = {"temperature": now, "max_grad_norm": norm}
        again = tiny.trainer(tmp_path, max_steps=2 + told, **changed, **saved)
        again.train(resume_from_checkpoint=True)
        said = [line.getMessage() for line in caplog.records if "so far" in line.getMessage()]
        assert len(said) == told, said
    assert "temperature: the run had 0.6 so far and goes on with 0.7; set 0.6 to keep it" in said
    caplog.clear()
    (tmp_path / "config.yaml").write_text("training: [")
    tiny.trainer(tmp_path, max_steps=5, **saved).train(resume_from_checkpoint=True)
    assert "whether settings have changed cannot be told" in caplog.text
