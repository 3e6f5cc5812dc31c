"""Checkpoints are complete or absent: damage is noticed, named and passed over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tiny
from dare import InvalidInput
from dare.runs.checkpoint import MANIFEST, checkpoints, chosen, newest, rotate, seal, verify

CONTENT = {"model.safetensors": b"weights" * 50, "curriculum/curriculum.json": b'{"step": 1}'}


def sealed(run: Path, step: int) -> Path:
    """A small checkpoint of this step."""
    stage = run / f".stage-{step}" / f"checkpoint-{step}"
    for name, content in CONTENT.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_bytes(content)
    seal(stage, run / f"checkpoint-{step}")
    rotate(run, None)
    return run / f"checkpoint-{step}"


def test_a_sealed_checkpoint_verifies_and_names_its_files(tmp_path: Path) -> None:
    folder = sealed(tmp_path, 3)
    assert verify(folder) is None
    assert set(json.loads((folder / MANIFEST).read_text())) == {*CONTENT, MANIFEST}
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


@pytest.mark.parametrize("name", [*CONTENT, MANIFEST])
@pytest.mark.parametrize("place", [0, 5, -1])
@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_one_changed_bit_is_noticed_and_the_older_checkpoint_used(
    name: str, place: int, mask: int, tmp_path: Path
) -> None:
    older, newer = sealed(tmp_path, 2), sealed(tmp_path, 4)
    content = bytearray((newer / name).read_bytes())
    content[place] ^= mask
    (newer / name).write_bytes(content)
    harmless = name == MANIFEST and json_equal(content, (older / name).read_bytes())
    assert (verify(newer) is None) == harmless
    assert newest(tmp_path) == (newer if harmless else older)


def json_equal(first: bytes | bytearray, second: bytes) -> bool:
    """Two files that say the same: a changed blank between entries loses nothing."""
    try:
        return bool(json.loads(first) == json.loads(second))
    except ValueError:
        return False


@pytest.mark.parametrize("name", [*CONTENT, MANIFEST])
def test_a_missing_file_is_noticed(name: str, tmp_path: Path) -> None:
    older, newer = sealed(tmp_path, 2), sealed(tmp_path, 10)
    (newer / name).unlink()
    reason = verify(newer)
    assert reason is not None
    assert newest(tmp_path) == older


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "null", '{"model.safetensors": 3}', "\x00"])
def test_a_damaged_manifest_is_noticed(text: str, tmp_path: Path) -> None:
    older, newer = sealed(tmp_path, 2), sealed(tmp_path, 10)
    (newer / MANIFEST).write_text(text)
    assert verify(newer) is not None
    assert newest(tmp_path) == older


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("gone", [True, False])
def test_a_manifest_that_lacks_an_entry_is_noticed(name: str, gone: bool, tmp_path: Path) -> None:
    older, newer = sealed(tmp_path, 2), sealed(tmp_path, 10)
    manifest = json.loads((newer / MANIFEST).read_text())
    del manifest[name]
    (newer / MANIFEST).write_text(json.dumps(manifest))
    if gone:  # the file too: Trainer would go on with a fresh optimiser, and say nothing
        (newer / name).unlink()
    assert str(verify(newer)).startswith("its manifest is damaged")
    assert newest(tmp_path) == older


@pytest.mark.parametrize("name", [*CONTENT, MANIFEST])
def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path, monkeypatch) -> None:
    older, newer = sealed(tmp_path, 2), sealed(tmp_path, 10)

    def refuse(path: Any, *given: Any, **named: Any) -> Any:
        if Path(path) == newer / name:
            raise PermissionError(13, "Permission denied")
        return real(path, *given, **named)

    real = open  # root may read everything: the refusal is made up
    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("io.open", refuse)
    assert verify(newer) == f"{name} cannot be read (Permission denied)"
    assert newest(tmp_path) == older


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_manifest_is_noticed(share: float, tmp_path: Path) -> None:
    older, newer = sealed(tmp_path, 2), sealed(tmp_path, 10)
    text = (newer / MANIFEST).read_text().rstrip()
    (newer / MANIFEST).write_text(text[: int(share * len(text))])
    assert newest(tmp_path) == older


def test_passing_over_is_said_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sealed(tmp_path, 1)
    (folder / "\x1b[2J").write_text("of a stranger")
    (folder / MANIFEST).unlink()
    folder.rename(tmp_path / "staged")
    seal(tmp_path / "staged", folder)
    (folder / "\x1b[2J").unlink()
    assert newest(tmp_path) is None
    (folder / "\x1b[2J").write_text("of a stranger")
    (folder / "model.safetensors").write_bytes(b"other")
    assert newest(tmp_path) is None
    said = capsys.readouterr()
    assert "checkpoint-1" in said.out + said.err
    assert "\x1b" not in said.out + said.err
    assert "model.safetensors is damaged" in said.out + said.err


def test_a_checkpoint_asked_for_by_name_must_be_whole(tmp_path: Path) -> None:
    folder = sealed(tmp_path, 1)
    assert chosen(tmp_path, str(folder)) == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match=r"model\.safetensors is missing"):
        chosen(tmp_path, str(folder))
    with pytest.raises(InvalidInput, match="no manifest"):
        chosen(tmp_path, str(tmp_path / "nowhere"))


def test_checkpoints_are_ordered_by_step_and_stages_are_none(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        sealed(tmp_path, step)
    (tmp_path / ".stage-11" / "checkpoint-11").mkdir(parents=True)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-12").write_text("a file")
    (tmp_path / f"checkpoint-{'9' * 240}").mkdir()  # no name is left to set it aside under
    assert [path.name for path in checkpoints(tmp_path)] == [
        "checkpoint-10",
        "checkpoint-9",
        "checkpoint-2",
    ]


def test_rotation_keeps_the_newest_and_clears_stages(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        sealed(tmp_path, step)
    (tmp_path / ".stage-11" / "checkpoint-11").mkdir(parents=True)
    rotate(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-2"]


def test_sealing_over_a_damaged_checkpoint_replaces_it(tmp_path: Path) -> None:
    folder = sealed(tmp_path, 1)
    (folder / "model.safetensors").unlink()
    (folder / "stray").write_text("left over")
    assert verify(sealed(tmp_path, 1)) is None
    assert not (folder / "stray").exists()


FILES_OF_A_TRAINER = (
    *(
        "chat_template.jinja",
        "config.json",
        "curriculum/curriculum.json",
        "curriculum/curriculum.safetensors",
    ),
    *("generation_config.json", "manifest.json", "model.safetensors", "optimizer.pt"),
    *("rng_state.pth", "scheduler.pt", "tokenizer.json", "tokenizer_config.json"),
    *("trainer_state.json", "training_args.bin"),
)
DAMAGES: dict[str, Any] = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\n{}"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to("nothing")),
    "of another run": lambda path: path.write_bytes(path.read_bytes()[::-1]),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    tiny.trainer(folder, max_steps=2, save_strategy="steps", save_steps=1).train()
    names = [path for path in (folder / "checkpoint-2").rglob("*") if path.is_file()]
    found = {str(path.relative_to(folder / "checkpoint-2")) for path in names}
    assert found == set(FILES_OF_A_TRAINER)
    return folder


@pytest.mark.parametrize("name", FILES_OF_A_TRAINER)
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_to_any_file_is_named_and_passed_over(
    name: str, damage: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    DAMAGES[damage](tmp_path / "checkpoint-2" / name)
    assert newest(tmp_path) == tmp_path / "checkpoint-1"
    said = capsys.readouterr().out
    assert f"{name} is" in said or "manifest" in said


@pytest.mark.parametrize("damage", DAMAGES)
def test_where_all_are_damaged_nothing_is_begun_anew(
    damage: str, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    for path in checkpoints(tmp_path):
        DAMAGES[damage](path / "optimizer.pt")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(InvalidInput, match="has no usable checkpoint"):
        tiny.trainer(tmp_path, max_steps=2).train(resume_from_checkpoint=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt"])
def test_a_manifest_that_never_knew_the_optimiser_is_refused(
    name: str, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    last = tmp_path / "checkpoint-2"
    (last / name).unlink()
    (last / MANIFEST).unlink()
    last.rename(tmp_path / "staged")
    seal(tmp_path / "staged", last)
    with pytest.raises(InvalidInput, match=f"has no {name}"):
        tiny.trainer(tmp_path, max_steps=3).train(resume_from_checkpoint=True)


def agree(folder: Path, name: str, content: bytes | None) -> None:
    """Another content of a file, with a manifest that knows it."""
    (folder / MANIFEST).unlink()
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    folder.rename(folder.parent / "staged")
    seal(folder.parent / "staged", folder)


def with_step(step: Any) -> Any:
    return lambda held: json.dumps({**json.loads(held), "global_step": step}).encode()


GARBAGE: list[tuple[str, Any]] = [
    *(
        ("curriculum/curriculum.json", text)
        for text in (b"", b"{", b"{}", b"[]", b"\xff", b"[" * 9999)
    ),
    ("curriculum/curriculum.json", lambda held: held.replace(b'"step": 2', b'"step": NaN')),
    ("curriculum/curriculum.json", lambda held: held.replace(b'"updates"', b'"downdates"')),
    ("curriculum/curriculum.json", lambda held: held.replace(b'"format"', b'"form"')),
    ("curriculum/curriculum.json", None),
    *(("curriculum/curriculum.safetensors", text) for text in (b"", b"x", None)),
    *((name, text) for name in ("optimizer.pt", "scheduler.pt") for text in (b"", b"x", None)),
    *(("rng_state.pth", text) for text in (b"", b"x")),
    *(("model.safetensors", text) for text in (b"", b"x")),
    *(("trainer_state.json", text) for text in (b"", b"{", b"{}", b"[]", None)),
    *(("trainer_state.json", with_step(step)) for step in (1, -3, "2", None)),
]


@pytest.mark.parametrize(("name", "content"), GARBAGE)
def test_garbage_that_its_manifest_knows_is_named_with_the_checkpoint(
    name: str, content: Any, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    last = tmp_path / "checkpoint-2"
    held = (last / name).read_bytes()
    made = content(held) if callable(content) else content
    assert made != held
    agree(last, name, made)
    assert verify(last) is None
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(InvalidInput) as refused:
        tiny.trainer(tmp_path, max_steps=3).train(resume_from_checkpoint=True)
    assert (refused.value.field, refused.value.value) == ("resume_from_checkpoint", str(last))
    named = {"model.safetensors": "weights", "rng_state.pth": "rng_state"}
    assert named.get(name, Path(name).stem) in refused.value.fix
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("kind", ["a file", "a link in a circle", "a link to nothing"])
@pytest.mark.parametrize("resume", [True, None])
def test_what_stands_where_a_checkpoint_would_be_saved_is_named_before_anything_is_trained(
    kind: str, resume: bool | None, trained: Path, tmp_path: Path
) -> None:
    if resume:
        shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "checkpoint-3"
    if kind == "a file":
        path.touch()
    else:
        path.symlink_to(path if "circle" in kind else tmp_path / "nothing")
    before = sorted(tmp_path.rglob("*"))
    trainer = tiny.trainer(tmp_path, max_steps=3, save_strategy="steps", save_steps=1)
    with pytest.raises(InvalidInput, match="checkpoint-3': is no folder") as refused:
        trainer.train(resume_from_checkpoint=resume)
    assert refused.value.field == "output_dir"
    assert sorted(tmp_path.rglob("*")) == before


# --- what a trainer writes ------------------------------------------------------------------------


def test_the_trainers_checkpoints_verify_load_and_are_rotated(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path, max_steps=3, save_strategy="steps", save_steps=1, save_total_limit=2
    )
    trainer.train()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-3", "checkpoint-2"]
    assert all(verify(path) is None for path in checkpoints(tmp_path))
    assert not list(tmp_path.glob(".stage-*"))
    last = tmp_path / "checkpoint-3"
    model = AutoModelForCausalLM.from_pretrained(last)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    tokens = AutoTokenizer.from_pretrained(last)("3+4=")["input_ids"]
    assert tokens == tiny.tokenizer()("3+4=")["input_ids"]


def test_a_stage_left_by_a_crash_is_in_nobodys_way(tmp_path: Path) -> None:
    changes = {"save_strategy": "steps", "save_steps": 2}
    tiny.trainer(tmp_path, max_steps=2, **changes).train()
    # The crash came after everything was written and before the folder was moved into place.
    stage = tmp_path / ".stage-4" / "checkpoint-4"
    shutil.copytree(tmp_path / "checkpoint-2", stage)
    (stage / MANIFEST).unlink()
    (stage / "stray").write_text("left over")
    tiny.trainer(tmp_path, max_steps=4, **changes).train(resume_from_checkpoint=True)
    assert verify(tmp_path / "checkpoint-4") is None
    assert not (tmp_path / "checkpoint-4" / "stray").exists()
    assert not list(tmp_path.glob(".stage-*"))


def test_the_best_checkpoint_can_be_loaded_at_the_end(tmp_path: Path) -> None:
    accuracy = iter([0.25, 1.0, 0.5, 0.75])

    def reward(prompts, completions, chance, **_):
        if chance[0] != 0.125:  # of training
            return tiny.lottery(prompts, completions, chance)
        share = next(accuracy)
        return [float(place < share * len(prompts)) for place in range(len(prompts))]

    trainer = tiny.trainer(
        tmp_path,
        reward=reward,
        eval_data=tiny.problems(0.125),
        max_steps=4,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=2,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        greater_is_better=True,
    )
    trainer.train()
    assert trainer.state.best_global_step == 2
    best = tmp_path / "checkpoint-2"
    assert trainer.state.best_model_checkpoint == str(best)
    saved = AutoModelForCausalLM.from_pretrained(best).state_dict()
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(saved[name], value)
