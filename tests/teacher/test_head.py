"""Properties of the DOTS difficulty predictor, `dare.teacher.head`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from dare.curriculum.arrays import Array
from dare.teacher.fit import FitPoint, FitSettings, fit_head, optimiser
from dare.teacher.head import TeacherHead

H = 12


def _task(seed: int, rows: int = 40, refs: int = 16, dim: int = H) -> tuple[Array, ...]:
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(rows, dim)),
        rng.integers(0, 9, rows) / 8,
        rng.normal(size=(refs, dim)),
        rng.integers(0, 9, refs) / 8,
    )


def _perturbed(seed: int = 0, scale: float = 0.3, tau: float = 1.0) -> TeacherHead:
    """A head off its symmetric start, where every gradient is non-zero."""
    arrays = TeacherHead.init(H, 10, seed=seed, dtype="float64").arrays()
    rng = np.random.default_rng(seed + 1)
    return TeacherHead.of({k: v + scale * rng.normal(size=v.shape) for k, v in arrays.items()}, tau)


def _formula(
    p: dict[str, Array], tau: float, task: tuple[Array, ...]
) -> tuple[Array, Array, Array]:
    """Loss, answer and base prediction in NumPy; shares no code with the package.

    A parameter may have an axis more, in front: one of many values that it may take.
    """
    queries, targets, references, success = task

    def norm(x: Array) -> Array:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def row(name: str) -> Array:
        return p[name][..., None, :]

    def tower(x: Array, name: str) -> Array:
        x = norm(x) * row(f"{name}.in_gain") + row(f"{name}.in_shift")
        for layer in (1, 2, 3):
            x = x @ p[f"{name}.w{layer}"] + row(f"{name}.b{layer}")
            inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
            x = 0.5 * x * (1 + np.tanh(inner)) if layer < 3 else x
        return norm(x) * row(f"{name}.out_gain") + row(f"{name}.out_shift")

    q, r = tower(queries, "query"), tower(references, "reference")
    weights = np.exp(q @ np.swapaxes(r, -1, -2) / (q.shape[-1] ** 0.5 * tau))
    base = (weights / weights.sum(-1, keepdims=True)) @ success
    stats = np.array([[success.mean(), success.std()]])
    inner = np.maximum(stats @ p["calibrator.w1"] + row("calibrator.b1"), 0)
    raw = inner @ p["calibrator.w2"] + row("calibrator.b2")
    temperature = np.clip(np.log1p(np.exp(raw[..., 0])), 1e-2, 10)
    held = np.clip(base, 1e-4, 1 - 1e-4)
    logit = np.log(held / (1 - held)) / temperature + np.tanh(raw[..., 1])
    loss = np.mean(np.logaddexp(0, logit) - targets * logit, axis=-1)
    return loss, 1 / (1 + np.exp(-logit)), base


def _slopes(head: TeacherHead, task: tuple[Array, ...], step: float = 1e-5) -> dict[str, Array]:
    """The gradient of the formula, number by number, from central differences."""
    p = head.arrays()
    found = {}
    for name, value in p.items():
        moves = step * np.eye(value.size).reshape(-1, *value.shape)  # one number each
        up, down = (
            _formula({**p, name: value + side}, head.tau, task)[0] for side in (moves, -moves)
        )
        found[name] = ((up - down) / (2 * step)).reshape(value.shape)
    return found


def _gradient(head: TeacherHead, task: tuple[Array, ...]) -> dict[str, Array]:
    head.loss(*task).backward()
    return {name: value.grad.numpy() for name, value in head.named_parameters()}


@pytest.mark.parametrize(("seed", "tau"), [(0, 1.0), (1, 1.0), (2, 0.3), (3, 3.0)])
def test_loss_answer_and_gradient_are_those_of_the_formula(seed: int, tau: float) -> None:
    head, task = _perturbed(seed, tau=tau), _task(seed)
    loss, answer, base = _formula(head.arrays(), tau, task)
    assert head.loss(*task).item() == pytest.approx(loss, rel=1e-10)
    queries, _, references, success = task
    np.testing.assert_allclose(head.predict(queries, references, success), answer, rtol=1e-9)
    alone = head.predict(queries, references, success, calibrated=False)
    np.testing.assert_allclose(alone, base, rtol=1e-9)
    assert not np.allclose(alone, answer)
    grads, slopes = _gradient(head, task), _slopes(head, task)
    assert grads.keys() == slopes.keys()
    for name, expected in slopes.items():
        if name == "reference.out_shift":
            # Moving all keys together adds one constant to a query's scores: softmax ignores it.
            assert np.abs(grads[name]).max() < 1e-12
            continue
        size = np.abs(grads[name]).max()
        assert size > 1e-8, f"{name} is not exercised"
        np.testing.assert_allclose(grads[name], expected, rtol=1e-5, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("case", ["base", "low temperature", "high temperature"])
def test_the_gradient_stops_at_the_clips(case: str) -> None:
    head, task = _perturbed(4), _task(4)
    if case == "base":
        task[3][:] = 0.0  # every base prediction is below the clip
    else:
        arrays = head.arrays()
        arrays["calibrator.b2"][0] = -40.0 if case == "low temperature" else 40.0
        head = TeacherHead.of(arrays, head.tau)
    grads = _gradient(head, task)
    for name, expected in _slopes(head, task).items():
        np.testing.assert_allclose(grads[name], expected, rtol=1e-4, atol=1e-8, err_msg=name)


@pytest.mark.parametrize(
    ("dtype", "digest"), [("float32", "4cf564fb17dcf771"), ("float64", "fc778a9e1ec7a641")]
)
def test_a_seed_gives_the_head_that_older_runs_had(dtype: str, digest: str) -> None:
    """A run without a file of its own resumes only with the same untrained head."""
    assert TeacherHead.init(6, 8, seed=3, tau=0.5, dtype=dtype).digest() == digest


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), refs=st.integers(1, 40))
def test_order_of_references_does_not_matter(seed: int, refs: int) -> None:
    head = _perturbed(seed)
    queries, _, references, success = _task(seed, refs=refs)
    order = np.random.default_rng(seed).permutation(refs)
    np.testing.assert_allclose(
        head.predict(queries, references, success),
        head.predict(queries, references[order], success[order]),
        rtol=1e-9,
    )


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), rate=st.floats(0, 1), refs=st.integers(1, 30))
def test_constant_reference_success_hides_the_query(seed: int, rate: float, refs: int) -> None:
    queries, _, references, _ = _task(seed, refs=refs)
    prediction = _perturbed(seed).predict(queries, references, np.full(refs, rate))
    assert np.ptp(prediction) < 1e-9
    untrained = TeacherHead.init(H, 10, seed=seed, dtype="float64")
    answer = untrained.predict(queries, references, np.full(refs, rate))
    np.testing.assert_allclose(answer, np.clip(rate, 1e-4, 1 - 1e-4), rtol=1e-9)


def test_low_temperature_follows_the_identical_reference() -> None:
    head = TeacherHead.init(H, 16, tau=1e-3, dtype="float64")
    _, _, references, _ = _task(6, refs=9)
    success = np.linspace(0.1, 0.9, 9)
    np.testing.assert_allclose(head.predict(references, references, success), success, atol=1e-6)
    flat = TeacherHead.init(H, 16, tau=1e6, dtype="float64")
    np.testing.assert_allclose(flat.predict(references, references, success), 0.5, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chunking_does_not_change_predictions(dtype: str) -> None:
    head = TeacherHead.init(H, 10, seed=3, dtype=dtype)
    queries, _, references, success = _task(7, rows=101)
    whole = head.predict(queries, references, success)
    assert whole.dtype == dtype
    for chunk in (1, 7, 100, 101, 5000):
        part = head.predict(queries, references, success, chunk=chunk)
        np.testing.assert_allclose(part, whole, rtol=1e-5 if dtype == "float32" else 1e-12)
    assert head.predict(queries[:0], references, success).shape == (0,)


def test_many_queries_from_disk_use_bounded_memory(tmp_path: Path) -> None:
    import tracemalloc

    class Largest(TorchDispatchMode):
        """The most numbers that a tensor had: torch's memory is not Python's."""

        size = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            self.size = max(self.size, made.numel() if isinstance(made, torch.Tensor) else 0)
            return made

    rows = np.lib.format.open_memmap(
        tmp_path / "rows.npy", mode="w+", dtype=np.float16, shape=(50_000, 8)
    )
    rows[:] = np.random.default_rng(0).normal(size=(1, 8))
    references = np.random.default_rng(1).normal(size=(256, 8))
    head, success = TeacherHead.init(8, 8), np.linspace(0, 1, 256)
    with Largest() as largest:
        head.predict(rows[:1], references, success)  # torch loads what it needs
        tracemalloc.start()
        out = head.predict(rows, references, success)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(out) == 50_000
    assert peak < 5e6, peak
    assert 200_000 <= largest.size <= 2048 * 256  # not the 50,000 x 256 scores


def _settings(steps: int, references: int, batch: int, **more: Any) -> FitSettings:
    given = {"lr": 1e-3, "weight_decay": 0.0, **more}
    return FitSettings(steps=steps, references=references, batch=batch, **given)


def _world(seed: int, prompts: int = 1000, dim: int = 24) -> tuple[Array, Array, Array]:
    """Three policies of different ability; success depends on 2 of the `dim` directions."""
    frame = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, 2)))[0]
    x = np.random.default_rng([seed, 1]).normal(size=(prompts, dim))
    u = x @ frame
    logit = 3 * np.tanh(u[:, 0]) + 1.5 * np.sin(2 * u[:, 1])
    ability = np.array([-1.0, 0.0, 1.0])
    success = 1 / (1 + np.exp(-(logit + ability[:, None])))
    return np.tile(x, (3, 1)), success.ravel(), np.repeat(np.arange(3), prompts)


def test_learns_a_smooth_function_of_a_subspace() -> None:
    rows, success, groups = _world(0)
    head = TeacherHead.init(rows.shape[1], 32, seed=0)
    fit = fit_head(head, rows, success, _settings(600, 128, 64, lr=5e-3), groups)
    first, best = fit.history[0], fit.best
    assert (first.step, fit.history[-1].step) == (0, 600)
    of_mean = np.mean([np.abs(s - s.mean()).mean() for s in success.reshape(3, -1)])
    assert best.validation_mae < 0.7 * of_mean, (best, of_mean)
    assert best.validation_mae < 0.75 * first.validation_mae, (first, best)
    assert best.validation_bce == min(point.validation_bce for point in fit.history)
    # Fresh prompts of the same world: the validation figure of the kept parameters is honest.
    x, y, g = _world(1)
    errors = []
    for k in range(3):
        mine = np.flatnonzero(g == k)
        ref, query = mine[:128], mine[128:]
        errors.append(np.abs(head.predict(x[query], x[ref], y[ref]) - y[query]).mean())
    fresh_mae = np.mean(errors)
    assert fresh_mae == pytest.approx(best.validation_mae, abs=0.04)


def test_fit_is_deterministic_and_seeded() -> None:
    rows, success, groups = _world(1, prompts=60, dim=H)

    def run(seed: int) -> tuple[list[FitPoint], Array]:
        head = TeacherHead.init(H, 8, seed=0)
        fit = fit_head(head, rows, success, _settings(12, 16, 8, seed=seed), groups)
        return fit.history, head.predict(rows, rows[:16], success[:16])

    (history, prediction), (again, same), (_, other) = run(3), run(3), run(4)
    assert history == again
    assert np.array_equal(prediction, same)
    assert not np.array_equal(prediction, other)


def test_dropout_hides_a_share_of_every_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, success, _ = _world(1, prompts=60, dim=H)
    hidden: list[float] = []
    original = TeacherHead.loss

    def spy(self: TeacherHead, q: Array, y: Array, r: Array, s: Array) -> Any:
        hidden.extend((np.mean(q == 0), np.mean(r == 0)))
        return original(self, q, y, r, s)

    monkeypatch.setattr(TeacherHead, "loss", spy)
    for share in (0.0, 0.4):
        hidden.clear()
        fit_head(TeacherHead.init(H, 8), rows, success, _settings(20, 32, 32, dropout=share))
        assert np.mean(hidden) == pytest.approx(share, abs=0.03)


def test_weight_decay_shrinks_the_matrices_alone() -> None:
    head = TeacherHead.init(H, 8, dtype="float64")
    start, adam = head.arrays(), optimiser(head, _settings(1, 1, 1, lr=1e-3, weight_decay=30.0))
    for value in head.parameters():
        value.grad = torch.zeros_like(value)
    adam.step()
    for name, value in head.arrays().items():
        kept = 1 - 30 * 1e-3 if value.ndim == 2 else 1.0
        np.testing.assert_allclose(value, kept * start[name], rtol=1e-12, err_msg=name)


def test_validation_prompts_never_reach_training(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, success, groups = _world(2, prompts=50, dim=H)
    seen: list[tuple[set[bytes], set[bytes]]] = []
    scored: set[bytes] = set()
    loss, predict = TeacherHead.loss, TeacherHead.predict

    def keys(array: Array) -> set[bytes]:
        return {row.tobytes() for row in array}

    def spy(self: TeacherHead, q: Array, y: Array, r: Array, s: Array) -> Any:
        seen.append((keys(q), keys(r)))
        return loss(self, q, y, r, s)

    def spy_predict(self: TeacherHead, q: Array, r: Array, s: Array) -> Any:
        scored.update(keys(q))
        return predict(self, q, r, s)

    monkeypatch.setattr(TeacherHead, "loss", spy)
    monkeypatch.setattr(TeacherHead, "predict", spy_predict)
    head = TeacherHead.init(H, 8)
    fit_head(head, rows, success, _settings(30, 10, 10, held_out=0.2), groups)
    trained = set().union(*(q | r for q, r in seen))
    assert all(q.isdisjoint(r) and len(q) == len(r) == 10 for q, r in seen)
    assert len(keys(rows) - trained) >= 10  # 20 % of 50 prompts, under every snapshot
    assert keys(rows) - trained <= scored


def test_steps_do_not_mix_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(80, H))
    groups = np.repeat(["old", "new"], 40)
    success = np.where(groups == "old", 0.25, 0.75)
    seen: list[set[float]] = []
    original = TeacherHead.loss

    def spy(self: TeacherHead, q: Array, y: Array, r: Array, s: Array) -> Any:
        seen.append({*y, *s})
        return original(self, q, y, r, s)

    monkeypatch.setattr(TeacherHead, "loss", spy)
    head = TeacherHead.init(H, 8)
    fit_head(head, rows, success, _settings(20, 10, 10), groups)
    assert sorted(map(sorted, {frozenset(s) for s in seen})) == [[0.25], [0.75]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_give_the_same_head_again(dtype: str) -> None:
    queries, targets, references, success = _task(8)
    head = TeacherHead.init(H, 10, seed=1, tau=0.7, dtype=dtype)
    fit_head(head, queries, targets, _settings(5, 8, 8, lr=1e-2))
    assert head.digest() != TeacherHead.init(H, 10, seed=99, tau=0.7, dtype=dtype).digest()
    arrays = head.arrays()
    other = TeacherHead.of(arrays, head.tau)
    assert other.digest() == head.digest()
    before = head.predict(queries, references, success)
    assert np.array_equal(before, other.predict(queries, references, success))
    for value in arrays.values():  # copies: they reach into neither head
        value[:] = 0
    for one in (head, other):
        assert np.array_equal(before, one.predict(queries, references, success))


def test_arrays_that_are_no_head_are_named() -> None:
    good = TeacherHead.init(H, 10, seed=1).arrays()
    nan = good["query.b1"] * np.float32("nan")
    for change, words in (
        ({"query.w2": np.zeros((10, 11), np.float32)}, r"query\.w2.*\(10, 11\).*\(10, 10\)"),
        ({"query.b1": good["query.b1"].astype(np.float64)}, r"query\.b1.*float64.*cast"),
        ({"query.b1": nan}, r"query\.b1.*nan or inf"),
        ({"extra": np.zeros(1)}, r"extra.*unknown"),
        ({k: v.astype(np.float16) for k, v in good.items()}, "float16"),
        ({"query.w1": np.zeros(3, np.float32)}, r"query\.w1.*two dimensions"),
    ):
        with pytest.raises(ValueError, match=words):
            TeacherHead.of(good | change, 1.0)
    with pytest.raises(ValueError, match=r"tau = 0\.0"):
        TeacherHead.of(good, 0.0)
    for name in ("calibrator.w2", "query.w1"):
        with pytest.raises(ValueError, match=rf"{name}.*missing"):
            TeacherHead.of({k: v for k, v in good.items() if k != name}, 1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({3: np.r_[np.zeros(15), 1.2]}, r"success_N\[15\] = 1\.2.*\[0, 1\]"),
        ({3: np.r_[-0.1, np.zeros(15)]}, r"success_N\[0\] = -0\.1"),
        ({3: np.r_[0, np.nan, np.zeros(14)]}, r"success_N\[1\] = nan"),
        ({3: np.zeros(15)}, r"success_N has shape = \(15,\).*16"),
        ({1: np.full(40, 2.0)}, r"targets_B\[0\] = 2\.0"),
        ({1: np.zeros(3)}, r"targets_B has shape = \(3,\).*40"),
        ({2: np.zeros((0, H)), 3: np.zeros(0)}, "references_NH.*0 rows.*at least one"),
        ({2: np.zeros((16, H + 1))}, r"references_NH has shape = \(16, 13\).*12"),
        ({0: np.zeros(H)}, r"queries_BH has shape = \(12,\)"),
        ({0: np.zeros((0, H)), 1: np.zeros(0)}, "queries_BH.*0 rows"),
        ({0: np.r_[np.zeros((39, H)), np.full((1, H), np.inf)]}, r"queries_BH\[39\].*nan or inf"),
    ],
)
def test_bad_input_is_named(change: dict[int, Array], words: str) -> None:
    head, task = TeacherHead.init(H, 8), list(_task(9))
    for position, value in change.items():
        task[position] = value
    with pytest.raises(ValueError, match=words):
        head.loss(*task)
    if 1 not in change:
        with pytest.raises(ValueError, match=words.replace("_BH", "_PH")):
            head.predict(task[0], task[2], task[3])


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("batch", 0), ("lr", float("nan")), ("dropout", 1.0), ("weight_decay", -1.0),
     ("held_out", 1.0), ("hidden", 1), ("tau", 0.0), ("seed", -1)],
)  # fmt: skip
def test_bad_fit_settings_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"--{field.replace('_', '-')} = {value}"):
        FitSettings(**{field: value})


def test_what_does_not_fit_the_rows_is_named() -> None:
    queries, targets, _, _ = _task(10)
    head, fine = TeacherHead.init(H, 8), _settings(2, 8, 4)
    with pytest.raises(ValueError, match=r"--references = 36.*below 36.*merge"):
        fit_head(head, queries, targets, _settings(2, 36, 4))
    with pytest.raises(ValueError, match=r"groups has shape = \(2,\).*\(40,\)"):
        fit_head(head, queries, targets, fine, [1, 2])
    with pytest.raises(ValueError, match=r"--lr = 1e\+29.*nan at step"):
        fit_head(head, queries, targets, _settings(5, 8, 4, lr=1e29))


def test_bad_sizes_are_named() -> None:
    for options, words in (
        ({"dim": 0}, "dim = 0"),
        ({"dim": H, "hidden": 1}, "hidden = 1"),
        ({"dim": H, "tau": 0.0}, r"tau = 0\.0"),
        ({"dim": H, "dtype": "float16"}, "float16"),
    ):
        with pytest.raises(ValueError, match=words):
            TeacherHead.init(**options)
    queries, _, references, success = _task(0)
    with pytest.raises(ValueError, match="chunk = 0"):
        TeacherHead.init(H, 8).predict(queries, references, success, chunk=0)


_SCRIPT = """
import numpy as np
from dare.teacher.fit import FitSettings, fit_head
from dare.teacher.head import TeacherHead
rng = np.random.default_rng(0)
x, y = rng.normal(size=(80, 6)), rng.random(80)
head = TeacherHead.init(6, 8)
settings = FitSettings(steps=10, references=12, batch=8)
fit_head(head, x, y, settings, np.repeat(["a", "b"], 40))
print(head.predict(x, x[:12], y[:12]).tobytes().hex())
"""


def test_python_hash_seed_does_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    """Another Python's is another than this one's, which is drawn where nobody sets it."""
    other = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    env = os.environ | {"PYTHONHASHSEED": other, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=env, capture_output=True, text=True, check=True
    )
    exec(_SCRIPT, {})
    assert len(run.stdout) > 80 * 8
    assert capsys.readouterr().out == run.stdout
