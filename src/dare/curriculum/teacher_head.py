"""The learned difficulty predictor of the `dots` baseline.

Follows Sun et al. 2025 (arXiv:2506.05316, "DOTS") and its public code; the DARE paper calls it
"Embedding-Based Prediction". Frozen embeddings of a query and of N reference prompts pass through
two adapters (LayerNorm, three linear layers with GELU between, LayerNorm). Scaled dot products
give a softmax over references, whose weighted success is the base prediction b; since the second
LayerNorm evens out norms, this ranks by cosine. A small network maps mean and standard deviation
of the references' success to a temperature t and bias c: answer = sigmoid(logit(b) / t + c).

Departures: no dropout inside the adapters; tanh form of GELU (numpy has no erf); population
standard deviation, so one reference is enough; adapters start equal and the calibration starts as
the identity, so an untrained head is attention by similarity, not noise; no linear refit on the
references, where each would attend to its own label. `teacher_fit` trains it.

Suffixes: P prompts, B query batch, N references, H embedding, D adapter width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]

_BASE_RANGE = (1e-4, 1 - 1e-4)  # keeps logit(b) finite when every reference is solved or failed
_TEMP_RANGE = (1e-2, 10.0)
_GELU = math.sqrt(2 / math.pi)
_ADAPTER = ("in_gain", "in_shift", "w1", "b1", "w2", "b2", "w3", "b3", "out_gain", "out_shift")


class TeacherHead:
    """Predicts success rates of prompts from those of references under the same policy."""

    def __init__(self, params: dict[str, Array], tau: float = 1.0) -> None:
        ensure(0 < tau < math.inf, f"tau={tau}: use a finite attention temperature above 0")
        self.params, self.tau = params, float(tau)

    @classmethod
    def init(
        cls, dim: int, hidden: int = 896, seed: int = 0, tau: float = 1.0, dtype: str = "float32"
    ) -> TeacherHead:
        """Random adapters from H = `dim` to D = `hidden` (896 in DOTS)."""
        ensure(dim >= 1, f"dim={dim}: use the embedding width, at least 1")
        ensure(hidden >= 2, f"hidden={hidden}: use at least 2, LayerNorm needs a spread")
        ensure(dtype in ("float32", "float64"), f"dtype={dtype!r}: use 'float32' or 'float64'")
        rng = np.random.default_rng(seed)
        adapter: dict[str, Array] = {"in_gain": np.ones(dim), "in_shift": np.zeros(dim)}
        for layer, width in ((1, dim), (2, hidden), (3, hidden)):
            adapter[f"w{layer}"] = rng.normal(size=(width, hidden)) / math.sqrt(width)
            adapter[f"b{layer}"] = np.zeros(hidden)
        adapter |= {"out_gain": np.ones(hidden), "out_shift": np.zeros(hidden)}
        params = {f"{part}.{k}": v for part in ("query", "reference") for k, v in adapter.items()}
        params["calibrator.w1"] = rng.normal(size=(2, 10)) / math.sqrt(2)
        params["calibrator.b1"] = np.zeros(10)
        params["calibrator.w2"] = np.zeros((10, 2))
        params["calibrator.b2"] = np.array([math.log(math.e - 1), 0.0])  # temperature 1, bias 0
        return cls({k: v.astype(dtype) for k, v in params.items()}, tau)

    def predict(
        self, queries_PH: Array, references_NH: Array, success_N: npt.ArrayLike,
        chunk: int = 2048, *, calibrated: bool = True,
    ) -> Array:  # fmt: skip
        """Success probability of every query; working memory is O(chunk * (H + D + N)).

        Without `calibrated` it is b, before the group-statistics temperature and bias.
        """
        ensure(chunk >= 1, f"chunk={chunk}: use at least 1 row")
        queries = self.check_embeddings("queries_PH", queries_PH, empty=True)
        keys_ND, _ = self._adapt("reference", self.check_embeddings("references_NH", references_NH))
        success = check_success("success_N", success_N, len(keys_ND))
        out_P = np.empty(len(queries), dtype=keys_ND.dtype)
        for start in range(0, len(queries), chunk):
            z_BD, _ = self._adapt("query", queries[start : start + chunk])
            logit_B, cache = self._logits(z_BD, keys_ND, success)
            out_P[start : start + chunk] = _sigmoid(logit_B) if calibrated else cache[1]
        return out_P

    def loss_and_grad(
        self, queries_BH: Array, targets_B: npt.ArrayLike,
        references_NH: Array, success_N: npt.ArrayLike,
    ) -> tuple[float, dict[str, Array]]:  # fmt: skip
        """Mean binary cross-entropy against observed success rates, and its exact gradient."""
        z_BD, z_cache = self._adapt("query", self.check_embeddings("queries_BH", queries_BH))
        references = self.check_embeddings("references_NH", references_NH)
        keys_ND, key_cache = self._adapt("reference", references)
        y_B = check_success("targets_B", targets_B, len(z_BD)).astype(z_BD.dtype)
        success = check_success("success_N", success_N, len(keys_ND)).astype(z_BD.dtype)
        logit_B, cache = self._logits(z_BD, keys_ND, success)
        weight, base, base_logit, temp, stats, act, out = cache
        loss = float(np.mean(np.logaddexp(0, logit_B) - y_B * logit_B))  # never takes log(0)

        d_logit = (_sigmoid(logit_B) - y_B) / len(y_B)
        # A gradient passes a clip only where the clip changed nothing.
        d_temp = -np.sum(d_logit * base_logit) / temp**2 * (temp == np.logaddexp(0, out[0]))
        d_out = np.stack([d_temp * _sigmoid(out[0]), d_logit.sum() * (1 - np.tanh(out[1]) ** 2)])
        d_act = (self.params["calibrator.w2"] @ d_out) * (act > 0)
        grads = {"calibrator.w1": np.outer(stats, d_act), "calibrator.b1": d_act}
        grads |= {"calibrator.w2": np.outer(act, d_out), "calibrator.b2": d_out}
        clipped = np.clip(base, *_BASE_RANGE)
        d_base = d_logit / temp / (clipped * (1 - clipped)) * (base == clipped)
        d_score = weight * (success - base[:, None]) * d_base[:, None]
        d_score /= math.sqrt(z_BD.shape[1]) * self.tau
        grads |= self._adapt_grad("query", z_cache, d_score @ keys_ND)
        return loss, grads | self._adapt_grad("reference", key_cache, d_score.T @ z_BD)

    @property
    def width(self) -> int:
        """H, the embedding width that it reads."""
        return len(self.params["query.in_gain"])

    def digest(self) -> str:
        """A short hash of everything that decides its predictions."""
        found = hashlib.sha256(repr(self.tau).encode())
        for name, value in sorted(self.params.items()):
            found.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
        return found.hexdigest()[:16]

    def state_dict(self) -> dict[str, Array]:
        """Copies of the parameters and the attention temperature: plain arrays."""
        return {k: v.copy() for k, v in self.params.items()} | {"tau": np.array(self.tau)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Replace all parameters, taking over their precision; on an error nothing changes."""
        wrong = sorted(set(state) ^ {*self.params, "tau"})
        ensure(not wrong, f"state keys {wrong} are missing or unknown: pass a state_dict()")
        arrays = {k: np.array(state[k]) for k in self.params}
        precision = arrays["query.w1"].dtype
        ensure(precision in (np.float32, np.float64), f"state is {precision}: use float32 or 64")
        for k, array in arrays.items():
            want, name = self.params[k].shape, f"state[{k!r}]"
            fix = f"this head has {want}; init it with the dim and hidden of the saved one"
            ensure(array.shape == want, f"{name} has shape {array.shape}: {fix}")
            ensure(array.dtype == precision, f"{name} is {array.dtype}: cast it to {precision}")
            ensure(bool(np.isfinite(array).all()), f"{name} holds nan or inf: use another save")
        loaded = TeacherHead(arrays, float(state["tau"]))
        self.params, self.tau = loaded.params, loaded.tau

    def check_embeddings(self, name: str, values: Array, empty: bool = False) -> Array:
        """Shape and finiteness, checked in slices so that a memory-mapped array stays on disk."""
        rows, dim = np.asarray(values), self.width
        fix = f"pass (rows, {dim}), or init the head with another dim"
        ensure(rows.ndim == 2 and rows.shape[1] == dim, f"{name} has shape {rows.shape}: {fix}")
        ensure(empty or len(rows) > 0, f"{name} has 0 rows: pass at least one")
        for start in range(0, len(rows), 2048):
            bad = ~np.isfinite(rows[start : start + 2048]).all(axis=1)
            row = start + int(bad.argmax())
            ensure(not bad.any(), f"{name}[{row}] holds nan or inf: drop or embed it again")
        return rows

    def _logits(self, z_BD: Array, keys_ND: Array, success_N: Array) -> tuple[Array, list[Array]]:
        """Attention over references, then the group-statistics temperature and bias."""
        score = z_BD @ keys_ND.T / (math.sqrt(z_BD.shape[1]) * self.tau)
        weight = np.exp(score - score.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        success = success_N.astype(weight.dtype)
        base, stats = weight @ success, np.stack([success.mean(), success.std()])
        act = np.maximum(stats @ self.params["calibrator.w1"] + self.params["calibrator.b1"], 0)
        out = act @ self.params["calibrator.w2"] + self.params["calibrator.b2"]
        clipped = np.clip(base, *_BASE_RANGE)
        base_logit = np.log(clipped) - np.log1p(-clipped)
        temp = np.clip(np.logaddexp(0, out[0]), *_TEMP_RANGE)
        logit_B = base_logit / temp + np.tanh(out[1])
        return logit_B, [weight, base, base_logit, temp, stats, act, out]

    def _adapt(self, part: str, rows_BH: Array) -> tuple[Array, list[Array]]:
        """One adapter and what its gradient needs; rows are cast here, a chunk at a time."""
        p = {k: self.params[f"{part}.{k}"] for k in _ADAPTER}
        unit, _ = _normalise(rows_BH.astype(p["w1"].dtype))
        a0 = unit * p["in_gain"] + p["in_shift"]
        h1 = a0 @ p["w1"] + p["b1"]
        a1, t1 = _gelu(h1)
        h2 = a1 @ p["w2"] + p["b2"]
        a2, t2 = _gelu(h2)
        out, inv = _normalise(a2 @ p["w3"] + p["b3"])
        return out * p["out_gain"] + p["out_shift"], [unit, a0, h1, t1, a1, h2, t2, a2, out, inv]

    def _adapt_grad(self, part: str, cache: list[Array], dz: Array) -> dict[str, Array]:
        p = {k: self.params[f"{part}.{k}"] for k in _ADAPTER}
        unit, a0, h1, t1, a1, h2, t2, a2, out, inv = cache
        d = dz * p["out_gain"]
        d3 = inv * (d - d.mean(axis=1, keepdims=True) - out * (d * out).mean(axis=1, keepdims=True))
        d2 = d3 @ p["w3"].T * _gelu_slope(h2, t2)
        d1 = d2 @ p["w2"].T * _gelu_slope(h1, t1)
        d0 = d1 @ p["w1"].T
        weights = [a0.T @ d1, d1.sum(0), a1.T @ d2, d2.sum(0), a2.T @ d3, d3.sum(0)]
        flat = [(d0 * unit).sum(0), d0.sum(0), *weights, (dz * out).sum(0), dz.sum(0)]
        return {f"{part}.{k}": grad for k, grad in zip(_ADAPTER, flat, strict=True)}


def ensure(condition: bool, message: str) -> None:
    """ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def check_success(name: str, values: npt.ArrayLike, length: int) -> Array:
    """`length` success rates, or an error that names the first bad one."""
    rates = np.asarray(values, dtype=np.float64)
    fix = f"pass one rate for each of the {length} embeddings"
    ensure(rates.shape == (length,), f"{name} has shape {rates.shape}: {fix}")
    bad = ~((rates >= 0) & (rates <= 1))  # written so that nan counts as bad
    i = int(bad.argmax())
    ensure(not bad.any(), f"{name}[{i}] = {rates[i]}: use success rates in [0, 1]")
    return rates


def _normalise(x: Array) -> tuple[Array, Array]:
    """LayerNorm without its affine part, and the reciprocal spread its gradient needs."""
    centred = x - x.mean(axis=1, keepdims=True)
    inverse = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)
    return centred * inverse, inverse


def _gelu(x: Array) -> tuple[Array, Array]:
    """Value and, for the slope, the inner tanh; x * x * x because numpy's x**3 is slow."""
    t = np.tanh(_GELU * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1 + t), t


def _gelu_slope(x: Array, t: Array) -> Array:
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * _GELU * (1 + 3 * 0.044715 * x * x)


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))  # this form cannot overflow
