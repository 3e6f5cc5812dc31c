"""RolloutBatch: what goes in comes out, and what cannot be right is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import batch, examples

from dare import InvalidInput, RolloutBatch
from dare.curriculum import Conditioning, Finish

ROLLOUT = st.tuples(
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-50, 0, width=32)), max_size=6),
    st.sampled_from([None, 0.0, 1.0, 0.25]),
    st.sampled_from(list(Conditioning)),
    st.sampled_from(list(Finish)),
)


def pack(rollouts: list[tuple[Any, ...]]) -> RolloutBatch:
    return RolloutBatch.from_lists(
        [r[0] for r in rollouts],
        [[t for t, _ in r[1]] for r in rollouts],
        [[p for _, p in r[1]] for r in rollouts],
        [r[2] for r in rollouts],
        conditioning=[r[3] for r in rollouts],
        finish=[r[4] for r in rollouts],
    )


@given(st.lists(ROLLOUT, max_size=8))
@examples(60)
def test_lists_survive_packing(rollouts: list[tuple[Any, ...]]) -> None:
    packed = pack(rollouts)
    assert len(packed) == len(rollouts)
    for i, (prompt, pairs, reward, conditioning, finish) in enumerate(rollouts):
        part = slice(packed.offsets[i], packed.offsets[i + 1])
        assert packed.prompt_R[i] == prompt
        assert packed.tokens[part].tolist() == [t for t, _ in pairs]
        assert packed.logprobs[part].tolist() == [p for _, p in pairs]
        assert packed.length_R[i] == len(pairs)
        assert packed.scored_R[i] == (reward is not None)
        assert reward is None or packed.reward_R[i] == reward
        assert packed.plain_R[i] == (conditioning == 0)
        assert packed.finish_R[i] == finish
        assert packed.total_logprob_R[i] == pytest.approx(sum(p for _, p in pairs), abs=1e-6)


@given(st.lists(st.lists(ROLLOUT, max_size=4), min_size=1, max_size=4))
@examples(40)
def test_concatenating_batches_is_packing_all_at_once(parts: list[list[Any]]) -> None:
    joined = RolloutBatch.concatenate([pack(part) for part in parts])
    whole = pack([r for part in parts for r in part])
    for name in RolloutBatch.__dataclass_fields__:
        left, right = getattr(joined, name), getattr(whole, name)
        if name == "total_logprob_R":
            np.testing.assert_allclose(left, right, atol=1e-9)
        else:
            assert np.array_equal(left, right, equal_nan=left.dtype.kind == "f"), name


def test_torch_tensors_of_any_float_type_are_taken() -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        packed = RolloutBatch.from_lists(
            torch.tensor([2, 2]),
            [torch.tensor([1, 2]), torch.tensor([3])],
            [torch.tensor([-0.5, -1.0], dtype=kind), torch.tensor([-2.0], dtype=kind)],
            torch.tensor([1.0, 0.0], dtype=kind),
        )
        assert packed.tokens.tolist() == [1, 2, 3]
        assert packed.total_logprob_R.tolist() == [-1.5, -2.0]
        assert packed.reward_R.tolist() == [1.0, 0.0]


def test_a_given_total_replaces_the_sum() -> None:
    packed = batch([0, 0], [1, 0], total=[-3.25, -4.5])
    assert packed.total_logprob_R.tolist() == [-3.25, -4.5]


GOOD: dict[str, Any] = {
    "prompt": [0, 1],
    "tokens": [[1, 2], [3]],
    "logprobs": [[-0.1, -0.2], [-0.3]],
    "reward": [1.0, 0.0],
}


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("reward", [float("nan"), 1.0], "nan"),
        ("reward", np.array([np.nan, 1.0]), "nan"),
        ("reward", [1.5, 1.0], "1.5"),
        ("reward", [0.0, -1], "-1.0"),
        ("reward", ["x", 1.0], "x"),
        ("reward", [1.0], "1"),
        ("prompt", [0, "one"], "one"),
        ("prompt", [0, 0.5], "0.5"),
        ("prompt", [0], "2"),
        ("tokens", [[1, 2]], "1"),
        ("tokens", [[1, 2.5], [3]], "2.5"),
        ("tokens", [[1, 2], [2**40]], str(2**40)),
        ("tokens", [[1, "b"], [3]], "b"),
        ("logprobs", [[-0.1, -0.2]], "1"),
        ("logprobs", [[-0.1], [-0.3]], "1"),
        ("logprobs", [[-0.1, float("-inf")], [-0.3]], "-inf"),
        ("logprobs", [[-0.1, float("nan")], [-0.3]], "nan"),
        ("total_logprob", [-1.0], "1"),
        ("total_logprob", [-1.0, float("-inf")], "-inf"),
        ("total_logprob", [float("nan"), 0.0], "nan"),
        ("conditioning", [0, 3], "3"),
        ("conditioning", [0], "1"),
        ("finish", [0, -1], "-1"),
        ("finish", [0, 1, 0], "3"),
    ],
)
def test_bad_columns_are_named_shown_and_explained(field: str, value: Any, shown: str) -> None:
    with pytest.raises(InvalidInput) as error:
        RolloutBatch.from_lists(**{**GOOD, field: value})
    # A prompt list of the wrong length is noticed at the columns it disagrees with.
    assert error.value.field in ({field} if len(value) != 1 else {field, "reward"})
    assert shown in str(error.value)
    assert "must" in error.value.fix or "needs" in error.value.fix


def test_nothing_to_concatenate_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one batch"):
        RolloutBatch.concatenate([])
