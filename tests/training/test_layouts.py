"""Training on packed sequences and in mixed precision, through the trainer itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gradient_cases import run
from transformers import TrainerCallback

import tiny
from dare_decoder.batching import Layout


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: every batch of given tokens is packed."""
    for user in ("policy.policy", "policy.score", "policy.embed"):
        monkeypatch.setattr(f"dare.{user}.layout_of", lambda model, pad: Layout(True, pad))


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("case", ["accumulation 4", "all"])
def test_packed_steps_have_the_gradient_of_the_plain_reference(
    case: str, checkpointing: bool, tmp_path: Path
) -> None:
    seen = []
    model = tiny.policy()
    model.register_forward_pre_hook(
        lambda _, __, given: seen.append("cu_seq_lens_q" in given), with_kwargs=True
    )
    again = {"gradient_checkpointing_kwargs": {"use_reentrant": False}} if checkpointing else {}
    _, steps = run(case, tmp_path, model, gradient_checkpointing=checkpointing, **again)
    assert any(seen)
    for step in steps:
        assert step.distance() < 1e-5


class Watch(TrainerCallback):
    """The gradients that reach the optimiser."""

    def __init__(self) -> None:
        self.seen: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):  # type: ignore[no-untyped-def]
        named = model.named_parameters()
        self.seen.append({name: value.grad.clone() for name, value in named})


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_mixed_precision_trains_float32_weights(
    layout: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if layout == "packed":
        request.getfixturevalue("packed")
    written: list[Any] = []
    first = []
    for bf16 in (False, True):
        watch = Watch()
        trainer = tiny.trainer(
            tmp_path / str(bf16), bf16=bf16, max_steps=1, callbacks=[watch], preset="grpo"
        )
        generate, replayed = trainer.policy.generator.generate, iter(list(written))

        def kept(request: Any, sampling: Any, generate: Any = generate) -> Any:
            written.append(generate(request, sampling))
            return written[-1]

        def again(*_: Any, replayed: Any = replayed) -> Any:
            return next(replayed)

        # What is drawn would differ here and there; the second run trains on what the first drew.
        trainer.policy.generator.generate = again if bf16 else kept  # type: ignore[method-assign]
        trainer.train()
        (gradient,) = watch.seen
        assert {value.dtype for value in gradient.values()} == {torch.float32}
        first.append((gradient, tiny.lines(tmp_path / str(bf16) / "metrics.jsonl")[0]))
    (exact, plain), (mixed, line) = first
    assert line["tokens"] == plain["tokens"]
    scale = max(float(value.abs().max()) for value in exact.values())
    gap = max(float((mixed[name] - exact[name]).abs().max()) for name in exact)
    assert 0.0 < gap < 0.1 * scale  # rounded somewhere, but nowhere far
    assert scale > 1e-3
