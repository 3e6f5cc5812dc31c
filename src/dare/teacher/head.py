"""The learned difficulty predictor of the `dots` baseline.

Follows Sun et al. 2025 (arXiv:2506.05316, "DOTS") and its public code; the DARE paper calls it
"Embedding-Based Prediction". Frozen embeddings of a query and of N reference prompts pass through
two adapters (LayerNorm, three linear layers with GELU between, LayerNorm). Scaled dot products
give a softmax over references, whose weighted success is the base prediction b; since the second
LayerNorm evens out norms, this ranks by cosine. A small network maps mean and standard deviation
of the references' success to a temperature t and bias c: answer = sigmoid(logit(b) / t + c).

Departures: no dropout inside the adapters; tanh form of GELU; population standard deviation, so one
reference is enough; adapters start equal and the calibration starts as the identity, so an
untrained head is attention by similarity, not noise; no linear refit on the references, where each
would attend to its own label. `fit` trains it.

Suffixes: P prompts, B query batch, N references, H embedding, D adapter width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput, require

_BASE_RANGE = (1e-4, 1 - 1e-4)  # keeps logit(b) finite when every reference is solved or failed
_TEMP_RANGE = (1e-2, 10.0)


class TeacherHead(nn.Module):
    """Predicts success rates of prompts from those of references under the same policy.

    The curriculum's service `teacher`: arrays in, arrays out. Parameters have the names and the
    shapes that they have on disk, matrices as (in, out).
    """

    def __init__(self, arrays: Mapping[str, Array], tau: float = 1.0) -> None:
        super().__init__()
        fix = "use a finite attention temperature above 0"
        require(0 < tau < math.inf, "tau", tau, fix)
        self.tau = float(tau)
        self.query = _part(arrays, "query.")
        self.reference = _part(arrays, "reference.")
        self.calibrator = _part(arrays, "calibrator.")

    @classmethod
    def init(
        cls, dim: int, hidden: int = 896, seed: int = 0, tau: float = 1.0, dtype: str = "float32"
    ) -> TeacherHead:
        """Random adapters from H = `dim` to D = `hidden` (896 in DOTS)."""
        require(dim >= 1, "dim", dim, "use the embedding width, at least 1")
        require(hidden >= 2, "hidden", hidden, "use at least 2, LayerNorm needs a spread")
        require(dtype in ("float32", "float64"), "dtype", dtype, "use 'float32' or 'float64'")
        rng = np.random.default_rng(seed)  # NumPy's, so that a seed gives the same head anywhere
        adapter = {"in_gain": np.ones(dim), "in_shift": np.zeros(dim)}
        for layer, width in ((1, dim), (2, hidden), (3, hidden)):
            adapter[f"w{layer}"] = rng.normal(size=(width, hidden)) / math.sqrt(width)
            adapter[f"b{layer}"] = np.zeros(hidden)
        adapter |= {"out_gain": np.ones(hidden), "out_shift": np.zeros(hidden)}
        arrays = {f"{part}.{k}": v for part in ("query", "reference") for k, v in adapter.items()}
        arrays["calibrator.w1"] = rng.normal(size=(2, 10)) / math.sqrt(2)
        arrays["calibrator.b1"] = np.zeros(10)
        arrays["calibrator.w2"] = np.zeros((10, 2))
        arrays["calibrator.b2"] = np.array([math.log(math.e - 1), 0.0])  # temperature 1, bias 0
        return cls({k: v.astype(dtype) for k, v in arrays.items()}, tau)

    @classmethod
    def of(cls, arrays: Mapping[str, Array], tau: float) -> TeacherHead:
        """A head from its `arrays`, in their precision; what cannot be one is refused by name."""
        require("query.w1" in arrays, "query.w1", None, "is missing: pass the arrays of a head")
        first = arrays["query.w1"]
        fix = "use float32 or float64"
        require(first.dtype in (np.float32, np.float64), "precision", str(first.dtype), fix)
        require(first.ndim == 2, "query.w1", first.shape, "must have two dimensions")
        wanted = cls.init(*first.shape).arrays()
        wrong = sorted({*arrays} ^ {*wanted})
        require(not wrong, "arrays", wrong, "are missing or unknown: pass those of a head")
        for name, array in arrays.items():
            fix = f"query.w1 asks for {wanted[name].shape}: all must be of one dim and hidden"
            require(array.shape == wanted[name].shape, name, array.shape, fix)
            require(array.dtype == first.dtype, name, str(array.dtype), f"cast it to {first.dtype}")
            require(np.isfinite(array).all(), name, "nan or inf", "use another save")
        return cls(arrays, tau)

    def arrays(self) -> dict[str, Array]:
        """Copies of the parameters."""
        return {k: v.detach().cpu().numpy().copy() for k, v in self.state_dict().items()}

    @property
    def width(self) -> int:
        """H, the embedding width that it reads."""
        return len(self.query["in_gain"])

    def digest(self) -> str:
        """A short hash of everything that decides its predictions."""
        found = hashlib.sha256(repr(self.tau).encode())
        for name, value in sorted(self.arrays().items()):
            found.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
        return found.hexdigest()[:16]

    @torch.inference_mode()
    def predict(
        self, queries_PH: Array, references_NH: Array, success_N: npt.ArrayLike,
        chunk: int = 2048, *, calibrated: bool = True,
    ) -> Array:  # fmt: skip
        """Success probability of every query; working memory is O(chunk * (H + D + N)).

        Without `calibrated` it is b, before the group-statistics temperature and bias.
        """
        require(chunk >= 1, "chunk", chunk, "use at least 1 row")
        queries = self.check_embeddings("queries_PH", queries_PH, empty=True)
        references = self.check_embeddings("references_NH", references_NH)
        success = self._tensor(check_success("success_N", success_N, len(references)))
        keys = self._adapt(self.reference, self._tensor(references))
        parts = [keys.new_empty(0)]
        for start in range(0, len(queries), chunk):
            asked = self._adapt(self.query, self._tensor(queries[start : start + chunk]))
            base = self._base(asked, keys, success)
            parts.append(torch.sigmoid(self._calibrated(base, success)) if calibrated else base)
        found: Array = torch.cat(parts).numpy()
        return found

    def loss(
        self, queries_BH: Array, targets_B: npt.ArrayLike,
        references_NH: Array, success_N: npt.ArrayLike,
    ) -> Tensor:  # fmt: skip
        """Mean binary cross-entropy against observed success rates."""
        queries = self.check_embeddings("queries_BH", queries_BH)
        references = self.check_embeddings("references_NH", references_NH)
        targets = self._tensor(check_success("targets_B", targets_B, len(queries)))
        success = self._tensor(check_success("success_N", success_N, len(references)))
        keys = self._adapt(self.reference, self._tensor(references))
        base = self._base(self._adapt(self.query, self._tensor(queries)), keys, success)
        logit = self._calibrated(base, success)
        return functional.binary_cross_entropy_with_logits(logit, targets)

    def check_embeddings(self, name: str, values: Array, empty: bool = False) -> Array:
        """Shape and finiteness, checked in slices so that a memory-mapped array stays on disk."""
        rows, dim = np.asarray(values), self.width
        fix = f"pass (rows, {dim}), or init the head with another dim"
        require(rows.ndim == 2 and rows.shape[1] == dim, f"{name} has shape", rows.shape, fix)
        require(empty or len(rows) > 0, name, "0 rows", "pass at least one")
        for start in range(0, len(rows), 2048):
            bad = ~np.isfinite(rows[start : start + 2048]).all(axis=1)
            row = start + int(bad.argmax())
            require(not bad.any(), f"{name}[{row}]", "nan or inf", "drop or embed it again")
        return rows

    def _tensor(self, values: Array) -> Tensor:
        first: Tensor = self.query["w1"]
        return torch.tensor(values, dtype=first.dtype)

    def _adapt(self, p: nn.ParameterDict, rows_BH: Tensor) -> Tensor:
        x = functional.layer_norm(rows_BH, rows_BH.shape[1:], p["in_gain"], p["in_shift"])
        x = functional.gelu(x @ p["w1"] + p["b1"], approximate="tanh")
        x = functional.gelu(x @ p["w2"] + p["b2"], approximate="tanh")
        x = x @ p["w3"] + p["b3"]
        return functional.layer_norm(x, x.shape[1:], p["out_gain"], p["out_shift"])

    def _base(self, query_BD: Tensor, keys_ND: Tensor, success_N: Tensor) -> Tensor:
        """b: attention over references."""
        score = query_BD @ keys_ND.T / (math.sqrt(query_BD.shape[1]) * self.tau)
        return torch.softmax(score, dim=1) @ success_N

    def _calibrated(self, base_B: Tensor, success_N: Tensor) -> Tensor:
        """logit(b) / t + c, with t and c from the statistics of the references."""
        p = self.calibrator
        stats = torch.stack([success_N.mean(), success_N.std(correction=0)])
        raw = torch.relu(stats @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
        temperature = functional.softplus(raw[0]).clamp(*_TEMP_RANGE)
        return torch.logit(base_B.clamp(*_BASE_RANGE)) / temperature + torch.tanh(raw[1])


def _part(arrays: Mapping[str, Array], prefix: str) -> nn.ParameterDict:
    mine = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
    return nn.ParameterDict({k: nn.Parameter(torch.tensor(v)) for k, v in mine.items()})


def check_success(name: str, values: npt.ArrayLike, length: int) -> Array:
    """`length` success rates, or an error that names the first bad one."""
    rates = np.asarray(values, dtype=np.float64)
    fix = f"pass one rate for each of the {length} embeddings"
    require(rates.shape == (length,), f"{name} has shape", rates.shape, fix)
    bad = ~((rates >= 0) & (rates <= 1))  # written so that nan counts as bad
    if bad.any():
        row = int(bad.argmax())
        raise InvalidInput(f"{name}[{row}]", float(rates[row]), "use success rates in [0, 1]")
    return rates
