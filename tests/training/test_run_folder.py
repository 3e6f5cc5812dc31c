"""The run folder: what is in it, and how it is taken back to a checkpoint."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import yaml

import tiny
from dare import InvalidInput
from dare.runs.folder import FILES, RunFolder, sole


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    trainer = tiny.trainer(
        folder,
        eval_data=tiny.problems(0.5),
        eval_strategy="steps",
        eval_steps=2,
        max_steps=4,
        seed=5,
        curriculum={**tiny.CLASSIC, "estimator.refresh_share": 0.25, "selection.eta": 0.6},
    )
    trainer.train()
    return folder, trainer


def test_config_holds_everything_resolved(run) -> None:
    folder, trainer = run
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["curriculum"] == trainer.settings.to_dict()
    assert config["curriculum"]["seed"] == config["training"]["seed"] == 5
    assert config["curriculum"]["selection"]["eta"] == 0.6
    assert config["training"]["learning_rate"] == 1e-3
    assert config["processes"] == 1
    assert config["prompts"] == 12
    assert {"python", "torch", "transformers", "accelerate", "numpy"} <= set(config["versions"])


def test_metrics_have_one_complete_line_a_step(run) -> None:
    lines = tiny.lines(run[0] / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    total = 0
    for line in lines:
        for name in ("loss", "reward", "length", "coverage", "ess", "grad_norm", "learning_rate"):
            assert math.isfinite(line[name])
        assert line["tier_easy"] + line["tier_medium"] + line["tier_hard"] == line["prompts"]
        assert {"plan", "generate", "reward", "train", "refresh"} <= set(line["seconds"])
        assert set(line["tokens"]) == {"generated", "scored", "refreshed", "trained"}
        assert line["tokens"]["generated"] >= line["generated_tokens"]
        assert line["memory_mb"] > 0
        total += line["tokens"]["generated"]
        assert line["generated_tokens_total"] == total


def test_refresh_keeps_to_its_share_of_the_tokens(run) -> None:
    for line in tiny.lines(run[0] / "metrics.jsonl"):
        own = line["tokens"]["generated"] + line["tokens"]["trained"]
        assert 0 < line["tokens"]["refreshed"] <= 0.25 * own


def test_selections_say_what_was_drawn_and_how_it_went(run) -> None:
    folder, trainer = run
    known = set(trainer.store.table.ids())
    metrics = tiny.lines(folder / "metrics.jsonl")
    for line, told in zip(tiny.lines(folder / "selections.jsonl"), metrics, strict=True):
        count = len(line["prompt"])
        assert set(line["prompt"]) <= known
        assert len(set(line["prompt"])) == count
        for name in ("tier", "difficulty", "group_size", "failure_rate"):
            assert len(line[name]) == count
        assert sum(line["group_size"]) + told["replayed_rollouts"] == 32
        for tier, difficulty in zip(line["tier"], line["difficulty"], strict=True):
            expected = "easy" if difficulty < 0.3 else "hard" if difficulty > 0.8 else "medium"
            assert tier == expected
        assert all(0 <= rate <= 1 for rate in line["failure_rate"])


def test_samples_can_be_read(run) -> None:
    folder, trainer = run
    samples = tiny.lines(folder / "samples.jsonl")
    assert {sample["step"] for sample in samples} == {0, 1, 2, 3}
    for sample in samples:
        assert sample["conditioning"] in ("plain", "think_longer", "hinted")
        assert sample["finish"] in ("stop", "length")
        row = trainer.store.table.rows([sample["id"]])[0]
        assert trainer.store.records[row]["prompt"] == sample["prompt"]
        chance = trainer.store.records[row]["chance"]
        assert tiny.lottery([sample["prompt"]], [sample["response"]], [chance]) == [
            sample["reward"]
        ]


def test_evaluations_are_kept_by_step(run) -> None:
    lines = tiny.lines(run[0] / "eval.jsonl")
    assert [line["step"] for line in lines] == [2, 4]


def test_the_difficulty_table_is_that_of_the_curriculum(run) -> None:
    folder, trainer = run
    table = pyarrow.parquet.read_table(folder / "difficulty.parquet").to_pydict()
    assert table["id"] == trainer.store.table.ids()
    assert table["difficulty"] == trainer.curriculum.difficulty().tolist()
    assert sum(visits > 0 for visits in table["visits"]) == 12 * trainer.curriculum.coverage


def test_every_step_has_its_line_however_rarely_trainer_logs(tmp_path: Path) -> None:
    tiny.trainer(tmp_path, max_steps=4, logging_steps=3).train()
    lines = tiny.lines(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert all("tokens" in line and "loss" in line for line in lines)


def test_a_finished_run_names_the_command_that_shows_it_unless_asked_for_quiet(
    tmp_path: Path, capsys
) -> None:
    for name, quiet in (("heard", False), ("silent", True)):
        trainer = tiny.trainer(tmp_path / name, max_steps=1)
        if quiet:
            trainer.quiet()
        trainer.train()
        assert (f"dare report {tmp_path / name}" in capsys.readouterr().out) is not quiet


def test_no_half_written_files_are_left(run) -> None:
    assert not list(run[0].rglob("*.tmp"))
    assert not list(run[0].glob(".*"))


# --- the folder by itself -------------------------------------------------------------------------


def test_numbers_json_cannot_hold_become_null(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "new")
    record = {"step": 0, "a": np.float32("nan"), "b": [math.inf, np.int64(3)], "c": np.arange(2)}
    folder.append("metrics.jsonl", record)
    line = json.loads((tmp_path / "new" / "metrics.jsonl").read_text())
    assert line == {"step": 0, "a": None, "b": [None, 3], "c": [0, 1]}


def test_rewinding_drops_later_steps_and_keeps_the_evaluation_of_the_checkpoint(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path)
    for name in FILES:
        for step in range(6):
            folder.append(name, {"step": step, "text": "Zeile\u2028\u00e9"})
    folder.rewind(3)
    for name in FILES:
        kept = [line["step"] for line in tiny.lines(tmp_path / name)]
        # After three updates training lines 0 to 2 stand, and the evaluation at step 3.
        assert kept == ([0, 1, 2, 3] if name == "eval.jsonl" else [0, 1, 2])


@pytest.mark.parametrize("rest", ['{"step": 1, "lo', '{"step"', "{", '{"step": 1, "t": "\u00e9'])
def test_rewinding_survives_a_line_that_was_cut_off(rest: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append("metrics.jsonl", {"step": 0})
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(rest.encode()[:-1] if rest.endswith("\u00e9") else rest.encode())
    folder.rewind(2)
    assert tiny.lines(tmp_path / "metrics.jsonl") == [{"step": 0}]
    folder.append("metrics.jsonl", {"step": 1})
    assert [line["step"] for line in tiny.lines(tmp_path / "metrics.jsonl")] == [0, 1]


def test_a_process_that_does_not_write_leaves_no_trace(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "silent", writes=False)
    folder.append("metrics.jsonl", {"step": 0})
    folder.write_yaml("config.yaml", {"a": 1})
    folder.write_table({"id": ["x"]})
    folder.rewind(0)
    assert not (tmp_path / "silent").exists()


# --- damage ---------------------------------------------------------------------------------------

JUNK = [
    *(b"\x00\xff\x00", b"{", b"[1, 2]", b"null", b'{"no": "step"}', b'{"step": "1"}', b"[" * 9999),
    *(b'{"step": true}', b'{"step": -1}', b'{"step": 1.0}', b'\xef\xbb\xbf{"step": 1}', b'"step"'),
    *('{"step": 1}'.encode(kind) for kind in ("utf-16-le", "utf-16-be", "utf-32-le")),
]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("place", [0, 2])
def test_rewinding_drops_junk_and_keeps_what_comes_after_it(junk, place, tmp_path, capsys) -> None:
    folder = RunFolder(tmp_path)
    for step in range(5):
        folder.append("metrics.jsonl", {"step": step})
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
    lines.insert(place, junk)
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    folder.rewind(4)
    assert [line["step"] for line in tiny.lines(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]
    assert "metrics.jsonl: 1 lines are no records" in capsys.readouterr().out


CHANGES: dict[str, Any] = {
    "gone": lambda path, lines: path.unlink(),
    "empty": lambda path, lines: path.write_bytes(b""),
    "first line lost": lambda path, lines: path.write_bytes(b"".join(lines[1:])),
    "one lost": lambda path, lines: path.write_bytes(b"".join([lines[0], *lines[2:]])),
    "last ones lost": lambda path, lines: path.write_bytes(lines[0]),
    "cut": lambda path, lines: path.write_bytes(b"".join(lines)[:-9]),
    "twice": lambda path, lines: path.write_bytes(b"".join([lines[0], *lines])),
    "reversed": lambda path, lines: path.write_bytes(b"".join(lines[::-1])),
    "a digit": lambda path, lines: path.write_bytes(b"".join(lines).replace(b"0.5", b"0.6", 1)),
    "a link to nothing": lambda path, lines: (path.unlink(), path.symlink_to("../theirs")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_log_that_lost_or_changed_lines_is_told_of(change, tmp_path, capsys) -> None:
    folder = RunFolder(tmp_path / "run")
    for name in FILES:
        for step in range(4):
            folder.append(name, {"step": step, "value": 0.5})
    marks = folder.marks()
    for name in FILES:  # what comes after the checkpoint is no difference
        folder.append(name, {"step": 4, "value": 0.5})
    folder.rewind(4, marks)
    folder.append_evaluation({"step": 4})
    folder.rewind(4, marks)
    assert capsys.readouterr().out == ""
    path = folder.path / "selections.jsonl"
    CHANGES[change](path, path.read_bytes().splitlines(keepends=True))
    folder.rewind(4, marks)
    assert "selections.jsonl at step 4: lines before" in capsys.readouterr().out
    folder.append("selections.jsonl", {"step": 4})
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["folder", "device"])
def test_a_log_that_is_no_file_is_one_line(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.mkdir() if kind == "folder" else path.symlink_to("/dev/null")
    with pytest.raises(InvalidInput, match=f"{name} cannot be written"):
        RunFolder(tmp_path).rewind(3)


@pytest.mark.parametrize("kind", ["file", "under a file", "nothing", "null", "long", "circle"])
def test_an_output_dir_that_cannot_be_is_refused_before_anything_is_made(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    folder = {
        "file": str(tmp_path / "file"),
        "under a file": str(tmp_path / "file" / "run"),
        "nothing": "",
        "null": str(tmp_path / "a\0b"),
        "long": str(tmp_path / ("x" * 400)),
        "circle": str(tmp_path / "circle"),
    }[kind]
    with pytest.raises(InvalidInput) as caught:
        tiny.trainer(folder)
    assert caught.value.field == "output_dir"
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "file"]


def test_a_folder_that_is_not_ours_to_write_is_refused(tmp_path: Path, monkeypatch) -> None:
    # root may write everywhere: the refusal is made up
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(InvalidInput, match="is not yours to write to") as caught:
        tiny.trainer(tmp_path / "new" / "run")
    assert caught.value.field == "output_dir"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "difficulty.parquet"])
def test_a_full_disk_is_one_line_that_says_how_to_go_on(name, tmp_path, monkeypatch) -> None:
    def full(path: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        if Path(str(path)).name.startswith(name) and mode != "r" and "r" not in mode:
            raise OSError(28, "No space left on device")
        return real(path, mode, *given, **named)

    real = open
    monkeypatch.setattr("builtins.open", full)
    monkeypatch.setattr("io.open", full)
    with pytest.raises(InvalidInput, match="No space left on device") as caught:
        tiny.trainer(tmp_path, max_steps=1).train()
    assert f"{name} cannot be written" in caught.value.fix
    assert "--resume" in caught.value.fix


@pytest.mark.parametrize("damage", ["steps: [", "", "[]", "a: 1", "gone"])
def test_a_finished_run_whose_settings_are_damaged_is_not_begun_over(damage, tmp_path) -> None:
    RunFolder(tmp_path).append("metrics.jsonl", {"step": 2})
    if damage != "gone":
        (tmp_path / "config.yaml").write_text(damage)
    trainer = tiny.trainer(tmp_path, max_steps=3)
    with pytest.raises(InvalidInput, match="or files too damaged to tell"):
        trainer.train()
    assert tiny.lines(tmp_path / "metrics.jsonl") == [{"step": 2}]


# --- one run a folder -----------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from dare.runs.folder import sole
with sole(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_told_who_is_there_and_a_killed_one_is_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(InvalidInput, match=f"process {other.pid} on ") as caught:
                tiny.trainer(tmp_path).train()
            assert caught.value.field == "output_dir"
            assert {path.name for path in tmp_path.iterdir()} == {".lock"}
        finally:
            other.kill()
    tiny.trainer(tmp_path, max_steps=1).train()
    assert not (tmp_path / ".lock").exists()


def test_an_error_of_the_run_goes_through_the_lock(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), sole(tmp_path):
        raise FileNotFoundError("of a reward function, say")


@pytest.mark.parametrize("there", [True, False])
def test_a_lock_that_is_a_link_leaves_alone_what_it_points_at(there, tmp_path: Path) -> None:
    if there:
        (tmp_path / "mine").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(InvalidInput, match="cannot be written to"), sole(tmp_path / "run"):
        pass
    assert (tmp_path / "mine").exists() == there
    assert not there or (tmp_path / "mine").read_text() == "precious"


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch) -> None:
    """Its checkpoints would not be seen, and a run begun over them."""
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.R_OK)
    with pytest.raises(InvalidInput, match="or to list"):
        tiny.trainer(tmp_path)


def test_another_thread_is_refused_and_the_same_one_is_not(tmp_path: Path) -> None:
    found: list[str] = []

    def second() -> None:
        try:
            with sole(tmp_path):
                found.append("entered")
        except InvalidInput as error:
            found.append(error.fix)

    with sole(tmp_path), sole(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert "another thread" in found[0]
    second()
    assert found[1] == "entered"


def test_a_child_does_not_keep_the_lock_of_a_parent_that_is_gone(tmp_path: Path) -> None:
    forks = HOLD.replace("time.sleep(60)", "import os; os.fork() or time.sleep(60); os._exit(0)")
    command = [sys.executable, "-c", forks, str(tmp_path)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert other.wait() == 0  # the parent; the child sleeps on, with all of its files open
        with sole(tmp_path):
            pass
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.stdout.close()


def test_what_ends_a_run_is_heard_of_whatever_its_class(tmp_path: Path) -> None:
    """An OSError too: the lock's own are another matter."""
    with pytest.raises(TimeoutError), sole(tmp_path / "run"):
        raise TimeoutError
