"""The file of a DOTS head: what comes back, and what a run refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from dare import InvalidInput
from dare.curriculum import Services
from dare.policy.embed import embed_prompts
from dare.teacher.file import PROBES, SavedHead, load_head, save_head
from dare.teacher.head import TeacherHead

WIDTH = 32  # of the tiny policy
SMALL = {"estimator.references": 4, "medium.group_size": 4, "cold_start.references": 0}


def probes(model: Any = None) -> np.ndarray:
    """The tiny policy's embeddings of the probe texts."""
    texts = [tiny.encode(text) for text in PROBES]
    return embed_prompts(model or tiny.policy(), texts, pad_id=tiny.PAD)


def trained(seed: int = 3) -> TeacherHead:
    """A head that is not the untrained one."""
    head = TeacherHead.init(WIDTH, 8, seed=seed, tau=0.5)
    rng = np.random.default_rng(seed)
    moved = {
        name: value + (0.3 * rng.normal(size=value.shape)).astype(value.dtype)
        for name, value in head.arrays().items()
    }
    return TeacherHead.of(moved, head.tau)


def written(path: Path, **changes: Any) -> str:
    options: dict[str, Any] = {"head": trained(), "embedder": "tiny", "probes": probes()}
    save_head(SavedHead(**{**options, **changes}), path)
    return str(path)


def run(folder: Path, teacher: str | None, **changes: Any) -> Any:
    curriculum = {**SMALL, "estimator.teacher": teacher}
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, **changes}
    return tiny.trainer(folder, preset="dots", curriculum=curriculum, **settings)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_written_comes_back(dtype: str, tmp_path: Path) -> None:
    head = TeacherHead.init(6, 8, seed=3, tau=0.5, dtype=dtype)
    about = {"policies": ["a@0"], "errors": {"head": {"bce": 0.5}}}
    save_head(SavedHead(head, "some/model", np.ones((3, 6)), about), tmp_path / "new" / "h.st")
    again = load_head(tmp_path / "new" / "h.st")
    assert (again.embedder, again.about, again.head.tau) == ("some/model", about, 0.5)
    assert again.head.digest() == head.digest()
    assert again.probes is not None
    assert again.probes.tolist() == np.ones((3, 6)).tolist()
    rows = np.random.default_rng(0).normal(size=(5, 6)).astype(dtype)
    rates = np.array([0.0, 0.5, 1.0])
    expected = head.predict(rows, rows[:3], rates)
    np.testing.assert_array_equal(again.head.predict(rows, rows[:3], rates), expected)
    assert [item.name for item in (tmp_path / "new").iterdir()] == ["h.st"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    (tmp_path / "text").write_text("no", encoding="utf-8")
    save_file({"x": np.zeros(2)}, tmp_path / "other")
    good = load_head(written(tmp_path / "good"))
    arrays = {**good.head.arrays(), "query.b1": np.full(8, np.nan, np.float32)}
    meta = {"format": "dare-teacher-1", "embedder": "x", "about": "{}", "tau": "1.0"}
    save_file(arrays, tmp_path / "nan", metadata=meta)
    save_file({"x": np.ones(1)}, tmp_path / "empty", metadata=meta)
    words = {
        "none": "no such",
        "text": "no head",
        "other": "format",
        "nan": "nan",
        "empty": "damag",
    }
    for name, word in words.items():
        with pytest.raises(InvalidInput, match=rf"(?s)estimator\.teacher.*{word}"):
            load_head(tmp_path / name)


def test_a_run_uses_the_head_and_resumes_with_it(tmp_path: Path) -> None:
    head = written(tmp_path / "head")
    whole = run(tmp_path / "whole", head)
    whole.train()
    assert whole.curriculum.services.teacher.digest() == trained().digest()
    run(tmp_path / "half", head, max_steps=2).train()
    again = run(tmp_path / "half", head)
    again.train(resume_from_checkpoint=True)
    first, second = (tiny.lines(tmp_path / name / "selections.jsonl") for name in ("whole", "half"))
    assert first == second
    assert len(first) == 4
    untrained = run(tmp_path / "untrained", None)
    untrained.train()
    estimates = (made.curriculum.difficulty() for made in (whole, untrained))
    assert not np.array_equal(*estimates)
    # The same path with another head in it is another run.
    written(tmp_path / "head", head=trained(seed=4))
    with pytest.raises(InvalidInput, match=r"estimator\.teacher.*another head"):
        run(tmp_path / "half", head, max_steps=5).train(resume_from_checkpoint=True)


def test_a_head_of_other_embeddings_is_refused(tmp_path: Path) -> None:
    narrow = TeacherHead.init(WIDTH - 1, 8)
    path = written(tmp_path / "narrow", head=narrow, probes=None)
    with pytest.raises(InvalidInput, match="31 numbers, those here have 32"):
        run(tmp_path / "a", path).first_plan()
    path = written(tmp_path / "stranger", probes=probes(tiny.blank()))
    with pytest.raises(InvalidInput, match=r"'tiny'.*differently"):
        run(tmp_path / "b", path).first_plan()
    path = written(tmp_path / "good")
    with pytest.raises(InvalidInput, match=r"differently.*system prompt"):
        run(tmp_path / "c", path, system_prompt="Answer with a poem.").first_plan()
    with pytest.raises(InvalidInput, match="no such file"):
        run(tmp_path / "d", str(tmp_path / "none")).first_plan()
    run(tmp_path / "e", path).first_plan()


def test_given_embeddings_are_checked_by_their_width(tmp_path: Path) -> None:
    path = written(tmp_path / "head", probes=probes(tiny.blank()))
    rows = np.random.default_rng(0).normal(size=(12, WIDTH))
    run(tmp_path / "a", path, services=Services(embeddings=rows)).first_plan()
    with pytest.raises(InvalidInput, match="those here have 5"):
        run(tmp_path / "b", path, services=Services(embeddings=rows[:, :5])).first_plan()


def test_a_head_of_unknown_embeddings_is_used_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "run", written(tmp_path / "head", probes=None)).first_plan()
    assert "not checked" in caplog.text


def test_the_setting_is_text_or_null() -> None:
    from dare.config import CurriculumConfig

    assert CurriculumConfig.preset("dots").estimator.teacher is None
    assert CurriculumConfig.preset("dots", **{"estimator.teacher": "a"}).estimator.teacher == "a"
    with pytest.raises(InvalidInput, match=r"estimator\.teacher.*text .*or null"):
        CurriculumConfig.preset("dots", **{"estimator.teacher": 3})
