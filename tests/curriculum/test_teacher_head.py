"""Properties of the DOTS difficulty predictor, `dare.curriculum.teacher_head`."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dare.curriculum.teacher_fit import AdamW, FitPoint, fit_head
from dare.curriculum.teacher_head import Array, TeacherHead

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
    head = TeacherHead.init(H, 10, seed=seed, tau=tau, dtype="float64")
    rng = np.random.default_rng(seed + 1)
    for value in head.params.values():
        value += scale * rng.normal(size=value.shape)
    return head


def _torch_loss(head: TeacherHead, task: tuple[Array, ...]) -> tuple[float, dict[str, Any], Any]:
    """The same model from torch's own layers; shares no code with the package."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    p = {k: torch.tensor(v, requires_grad=True) for k, v in head.params.items()}
    queries, targets, references, success = (torch.tensor(a) for a in task)

    def tower(x: Any, name: str) -> Any:
        x = functional.layer_norm(x, x.shape[-1:], p[f"{name}.in_gain"], p[f"{name}.in_shift"])
        for layer in (1, 2, 3):
            x = functional.linear(x, p[f"{name}.w{layer}"].T, p[f"{name}.b{layer}"])
            x = functional.gelu(x, approximate="tanh") if layer < 3 else x
        return functional.layer_norm(x, x.shape[-1:], p[f"{name}.out_gain"], p[f"{name}.out_shift"])

    q, r = tower(queries, "query"), tower(references, "reference")
    weights = torch.softmax(q @ r.T / (q.shape[1] ** 0.5 * head.tau), dim=1)
    base = (weights * success).sum(dim=1).clamp(1e-4, 1 - 1e-4)
    stats = torch.stack([success.mean(), success.std(correction=0)])
    inner = torch.relu(stats @ p["calibrator.w1"] + p["calibrator.b1"])
    raw = inner @ p["calibrator.w2"] + p["calibrator.b2"]
    temperature = functional.softplus(raw[0]).clamp(1e-2, 10)
    logit = torch.logit(base) / temperature + torch.tanh(raw[1])
    loss = functional.binary_cross_entropy_with_logits(logit, targets)
    loss.backward()
    grads = {k: v.grad.numpy() for k, v in p.items()}
    return loss.item(), grads, torch.sigmoid(logit).detach().numpy()


@pytest.mark.parametrize(("seed", "tau"), [(0, 1.0), (1, 1.0), (2, 0.3), (3, 3.0)])
def test_gradient_equals_autograd(seed: int, tau: float) -> None:
    head, task = _perturbed(seed, tau=tau), _task(seed)
    loss, grads = head.loss_and_grad(*task)
    torch_loss, torch_grads, torch_prediction = _torch_loss(head, task)
    assert loss == pytest.approx(torch_loss, rel=1e-10)
    prediction = head.predict(task[0], task[2], task[3])
    np.testing.assert_allclose(prediction, torch_prediction, rtol=1e-9)
    assert grads.keys() == head.params.keys()
    for name, expected in torch_grads.items():
        size = np.abs(expected).max()
        if name == "reference.out_shift":
            # Moving all keys together adds one constant to a query's scores: softmax ignores it.
            assert max(size, np.abs(grads[name]).max()) < 1e-12
            continue
        assert size > 1e-8, f"{name} is not exercised"
        assert np.abs(grads[name] - expected).max() < 1e-6 * size, name


def test_the_uncalibrated_answer_is_the_weighted_success_alone() -> None:
    head, (queries, _, references, success) = _perturbed(0), _task(0)
    torch = pytest.importorskip("torch")
    base = head.predict(queries, references, success, calibrated=False)
    z, keys = (head._adapt(p, x)[0] for p, x in (("query", queries), ("reference", references)))
    weights = torch.softmax(torch.tensor(z @ keys.T) / z.shape[1] ** 0.5, dim=1).numpy()
    np.testing.assert_allclose(base, weights @ success, rtol=1e-9)
    assert not np.allclose(base, head.predict(queries, references, success))


@pytest.mark.parametrize("case", ["base", "low temperature", "high temperature"])
def test_gradient_stops_at_the_clips_like_autograd(case: str) -> None:
    head, task = _perturbed(4), _task(4)
    if case == "base":
        task[3][:] = 0.0  # every base prediction is below the clip
    else:
        head.params["calibrator.b2"][0] = -40.0 if case == "low temperature" else 40.0
    _, grads = head.loss_and_grad(*task)
    for name, expected in _torch_loss(head, task)[1].items():
        np.testing.assert_allclose(grads[name], expected, rtol=1e-6, atol=1e-12, err_msg=name)


def test_gradient_equals_finite_differences() -> None:
    head, task = _perturbed(5), _task(5)
    _, grads = head.loss_and_grad(*task)
    rng, step = np.random.default_rng(0), 1e-5
    for name, value in head.params.items():
        direction = rng.normal(size=value.shape)
        losses = []
        for sign in (1, -1):
            value += sign * step * direction
            losses.append(head.loss_and_grad(*task)[0])
            value -= sign * step * direction
        slope = (losses[0] - losses[1]) / (2 * step)
        assert np.sum(grads[name] * direction) == pytest.approx(slope, rel=1e-5, abs=1e-9), name


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

    rows = np.lib.format.open_memmap(
        tmp_path / "rows.npy", mode="w+", dtype=np.float16, shape=(200_000, 8)
    )
    rows[:] = np.random.default_rng(0).normal(size=(1, 8))
    references = np.random.default_rng(1).normal(size=(256, 8))
    head, success = TeacherHead.init(8, 8), np.linspace(0, 1, 256)
    tracemalloc.start()
    out = head.predict(rows, references, success)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(out) == 200_000
    assert peak < 20e6, peak  # the 200,000 x 256 scores alone would take 205 MB


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
    fit = fit_head(
        head, rows, success, steps=600, batch=64, references=128, lr=5e-3, seed=0, groups=groups
    )
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
        options = {"steps": 12, "references": 16, "batch": 8, "seed": seed, "groups": groups}
        fit = fit_head(head, rows, success, **options)
        return fit.history, head.predict(rows, rows[:16], success[:16])

    (history, prediction), (again, same), (_, other) = run(3), run(3), run(4)
    assert history == again
    assert np.array_equal(prediction, same)
    assert not np.array_equal(prediction, other)


def test_dropout_hides_a_share_of_every_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, success, _ = _world(1, prompts=60, dim=H)
    hidden: list[float] = []
    original = TeacherHead.loss_and_grad

    def spy(self: TeacherHead, q: Array, y: Array, r: Array, s: Array) -> Any:
        hidden.extend((np.mean(q == 0), np.mean(r == 0)))
        return original(self, q, y, r, s)

    monkeypatch.setattr(TeacherHead, "loss_and_grad", spy)
    options: dict[str, Any] = {"steps": 20, "references": 32, "batch": 32}
    for share in (0.0, 0.4):
        hidden.clear()
        fit_head(TeacherHead.init(H, 8), rows, success, dropout=share, **options)
        assert np.mean(hidden) == pytest.approx(share, abs=0.03)


def test_weight_decay_shrinks_the_matrices_alone() -> None:
    head, start = TeacherHead.init(H, 8, dtype="float64"), TeacherHead.init(H, 8, dtype="float64")
    optimiser = AdamW(head, 30.0)
    optimiser.step({name: np.zeros_like(value) for name, value in head.params.items()}, 1e-3)
    for name, value in start.params.items():
        kept = 1 - 30 * 1e-3 if value.ndim == 2 else 1.0
        np.testing.assert_allclose(head.params[name], kept * value, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_optimiser_is_torchs(decay: float) -> None:
    torch = pytest.importorskip("torch")
    head, rng = TeacherHead.init(4, 3, dtype="float64"), np.random.default_rng(0)
    copies = {name: torch.tensor(value.copy()) for name, value in head.params.items()}
    groups = [
        {"params": [v for v in copies.values() if (v.ndim == 2) == matrix], "weight_decay": d}
        for matrix, d in ((True, decay), (False, 0.0))
    ]
    theirs, ours = torch.optim.AdamW(groups, lr=1e-2), AdamW(head, decay)
    for _ in range(5):
        grads = {name: rng.normal(size=value.shape) for name, value in head.params.items()}
        for name, value in copies.items():
            value.grad = torch.tensor(grads[name])
        theirs.step()
        ours.step(grads, 1e-2)
    for name, value in copies.items():
        np.testing.assert_allclose(head.params[name], value.numpy(), rtol=1e-9, err_msg=name)


def test_validation_prompts_never_reach_training(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, success, groups = _world(2, prompts=50, dim=H)
    seen: list[tuple[set[bytes], set[bytes]]] = []
    scored: set[bytes] = set()
    loss_and_grad, predict = TeacherHead.loss_and_grad, TeacherHead.predict

    def keys(array: Array) -> set[bytes]:
        return {row.tobytes() for row in array}

    def spy(self: TeacherHead, q: Array, y: Array, r: Array, s: Array) -> Any:
        seen.append((keys(q), keys(r)))
        return loss_and_grad(self, q, y, r, s)

    def spy_predict(self: TeacherHead, q: Array, r: Array, s: Array) -> Any:
        scored.update(keys(q))
        return predict(self, q, r, s)

    monkeypatch.setattr(TeacherHead, "loss_and_grad", spy)
    monkeypatch.setattr(TeacherHead, "predict", spy_predict)
    head = TeacherHead.init(H, 8)
    options = {"steps": 30, "references": 10, "batch": 10, "groups": groups, "validation": 0.2}
    fit_head(head, rows, success, **options)
    trained = set().union(*(q | r for q, r in seen))
    assert all(q.isdisjoint(r) and len(q) == len(r) == 10 for q, r in seen)
    assert len(keys(rows) - trained) >= 10  # 20 % of 50 prompts, under every snapshot
    assert keys(rows) - trained <= scored


def test_steps_do_not_mix_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(80, H))
    groups = np.repeat(["old", "new"], 40)
    success = np.where(groups == "old", 0.25, 0.75)
    seen: list[set[float]] = []
    original = TeacherHead.loss_and_grad

    def spy(self: TeacherHead, q: Array, y: Array, r: Array, s: Array) -> Any:
        seen.append({*y, *s})
        return original(self, q, y, r, s)

    monkeypatch.setattr(TeacherHead, "loss_and_grad", spy)
    head = TeacherHead.init(H, 8)
    fit_head(head, rows, success, steps=20, references=10, batch=10, groups=groups)
    assert sorted(map(sorted, {frozenset(s) for s in seen})) == [[0.25], [0.75]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_loaded_state_gives_identical_predictions(dtype: str) -> None:
    queries, targets, references, success = _task(8)
    head = TeacherHead.init(H, 10, seed=1, tau=0.7, dtype=dtype)
    fit_head(head, queries, targets, steps=5, references=8, batch=8, lr=1e-2)
    other = TeacherHead.init(H, 10, seed=99)
    assert other.digest() != head.digest()
    other.load_state_dict(head.state_dict())
    assert other.digest() == head.digest()
    before = head.predict(queries, references, success)
    assert np.array_equal(before, other.predict(queries, references, success))
    for value in other.params.values():
        value += 1
    head.state_dict()["query.w1"][:] = 0  # copies: neither reaches into the first head
    assert np.array_equal(before, head.predict(queries, references, success))


def test_load_names_what_is_wrong_and_changes_nothing() -> None:
    head, good = TeacherHead.init(H, 10), TeacherHead.init(H, 10, seed=1).state_dict()
    before = head.state_dict()
    nan = good["query.b1"] * np.float32("nan")
    for change, words in (
        ({"query.w1": np.zeros((H, 11), np.float32)}, r"query\.w1.*\(12, 11\).*\(12, 10\).*hidden"),
        ({"query.b1": good["query.b1"].astype(np.float64)}, r"query\.b1.*float64.*cast"),
        ({"query.b1": nan}, r"query\.b1.*nan or inf"),
        ({"extra": np.zeros(1)}, r"extra.*unknown"),
        ({"tau": np.array(0.0)}, r"tau=0\.0"),
        ({k: v.astype(np.float16) for k, v in good.items()}, "float16"),
    ):
        with pytest.raises(ValueError, match=words):
            head.load_state_dict(good | change)
    with pytest.raises(ValueError, match=r"calibrator\.w2.*missing"):
        head.load_state_dict({k: v for k, v in good.items() if k != "calibrator.w2"})
    assert all(np.array_equal(before[k], v) for k, v in head.state_dict().items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({3: np.r_[np.zeros(15), 1.2]}, r"success_N\[15\] = 1\.2.*\[0, 1\]"),
        ({3: np.r_[-0.1, np.zeros(15)]}, r"success_N\[0\] = -0\.1"),
        ({3: np.r_[0, np.nan, np.zeros(14)]}, r"success_N\[1\] = nan"),
        ({3: np.zeros(15)}, r"success_N has shape \(15,\).*16"),
        ({1: np.full(40, 2.0)}, r"targets_B\[0\] = 2\.0"),
        ({1: np.zeros(3)}, r"targets_B has shape \(3,\).*40"),
        ({2: np.zeros((0, H)), 3: np.zeros(0)}, "references_NH has 0 rows.*at least one"),
        ({2: np.zeros((16, H + 1))}, r"references_NH has shape \(16, 13\).*12"),
        ({0: np.zeros(H)}, r"queries_BH has shape \(12,\)"),
        ({0: np.zeros((0, H)), 1: np.zeros(0)}, "queries_BH has 0 rows"),
        ({0: np.r_[np.zeros((39, H)), np.full((1, H), np.inf)]}, r"queries_BH\[39\].*nan or inf"),
    ],
)
def test_bad_input_is_named(change: dict[int, Array], words: str) -> None:
    head, task = TeacherHead.init(H, 8), list(_task(9))
    for position, value in change.items():
        task[position] = value
    with pytest.raises(ValueError, match=words):
        head.loss_and_grad(*task)
    if 1 not in change:
        with pytest.raises(ValueError, match=words.replace("_BH", "_PH")):
            head.predict(task[0], task[2], task[3])


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("steps", 0, "steps=0"),
        ("batch", 0, "batch=0"),
        ("references", 36, "references=36.*below 36.*merge"),
        ("lr", float("nan"), "lr=nan"),
        ("dropout", 1.0, r"dropout=1\.0"),
        ("weight_decay", -1.0, r"weight_decay=-1\.0"),
        ("validation", 1.0, r"validation=1\.0"),
        ("groups", [1, 2], r"groups has shape \(2,\).*\(40,\)"),
    ],
)
def test_bad_fit_settings_are_named(field: str, value: Any, words: str) -> None:
    queries, targets, _, _ = _task(10)
    options: dict[str, Any] = {"steps": 2, "references": 8, "batch": 4} | {field: value}
    with pytest.raises(ValueError, match=words):
        fit_head(TeacherHead.init(H, 8), queries, targets, **options)


def test_bad_sizes_are_named() -> None:
    for options, words in (
        ({"dim": 0}, "dim=0"),
        ({"dim": H, "hidden": 1}, "hidden=1"),
        ({"dim": H, "tau": 0.0}, r"tau=0\.0"),
        ({"dim": H, "dtype": "float16"}, "float16"),
    ):
        with pytest.raises(ValueError, match=words):
            TeacherHead.init(**options)
    queries, _, references, success = _task(0)
    with pytest.raises(ValueError, match="chunk=0"):
        TeacherHead.init(H, 8).predict(queries, references, success, chunk=0)


_SCRIPT = """
import numpy as np
from dare.curriculum.teacher_fit import fit_head
from dare.curriculum.teacher_head import TeacherHead
rng = np.random.default_rng(0)
x, y = rng.normal(size=(80, 6)), rng.random(80)
head = TeacherHead.init(6, 8)
fit_head(head, x, y, steps=10, references=12, batch=8, groups=np.repeat(["a", "b"], 40))
print(head.predict(x, x[:12], y[:12]).tobytes().hex())
import sys
assert "torch" not in sys.modules
"""


def test_python_hash_seed_does_not_matter() -> None:
    outputs = set()
    for hash_seed in ("0", "1"):
        env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", _SCRIPT], env=env, capture_output=True, text=True, check=True
        )
        outputs.add(hashlib.sha256(run.stdout.encode()).hexdigest())
    assert len(outputs) == 1
