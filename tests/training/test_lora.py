"""Adapters: they train, save and load; the weights under them are the reference policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gradient_cases import metrics, run
from peft import LoraConfig, PeftModel

import tiny

ADAPTERS = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"])


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.from_numpy(tiny.encode("3+4=", "5+6="))[None]).logits


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    torch.manual_seed(0)
    trainer = tiny.trainer(
        folder,
        peft_config=ADAPTERS,
        learning_rate=0.03,
        save_strategy="steps",
        save_steps=3,
    )
    trainer.train()
    return folder, trainer


def test_adapters_move_and_the_weights_under_them_do_not(trained) -> None:
    _, trainer = trained
    start = tiny.policy().state_dict()
    inside = dict(trainer.model.get_base_model().named_parameters())
    for name, value in start.items():
        held = inside.get(name, inside.get(name.replace(".weight", ".base_layer.weight")))
        assert held is not None
        assert torch.equal(held, value)
    moved = [v for n, v in trainer.model.named_parameters() if "lora_B" in n]
    assert moved
    assert all(float(value.detach().abs().max()) > 0 for value in moved)


def test_new_adapters_come_from_the_seed_of_the_run(tmp_path: Path) -> None:
    made = []
    for place, seed in enumerate((1, 1, 2)):
        torch.manual_seed(place)  # whatever was drawn before
        trainer = tiny.trainer(tmp_path, peft_config=ADAPTERS, seed=seed)
        named = dict(trainer.model.named_parameters())
        made.append(torch.cat([named[n].detach().flatten() for n in named if "lora_A" in n]))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_the_checkpoint_loads_over_the_base_model(trained) -> None:
    folder, trainer = trained
    checkpoint = folder / "checkpoint-3"
    assert not (checkpoint / "model.safetensors").exists()
    loaded = PeftModel.from_pretrained(tiny.policy(), checkpoint)
    assert torch.equal(logits(loaded), logits(trainer.model))
    assert not torch.allclose(logits(loaded), logits(tiny.policy()), atol=1e-3)


def test_the_reference_is_the_model_with_its_adapters_off(tmp_path: Path) -> None:
    trainer, steps = run("kl", tmp_path, peft_config=ADAPTERS, optim="adamw_torch")
    lines = metrics(tmp_path)
    assert lines[0]["objective_kl"] == pytest.approx(0.0, abs=1e-6)
    assert lines[1]["objective_kl"] > 1e-3
    for step, line in zip(steps, lines, strict=True):
        assert step.distance() < 1e-5
        assert line["loss"] == pytest.approx(step.loss, abs=1e-5)
        assert line["objective_kl"] == pytest.approx(step.kl, abs=1e-5)
    assert trainer.policy._reference._frozen is None  # no second model


def test_adapters_resume_bit_for_bit(trained, tmp_path: Path) -> None:
    _, whole = trained
    changes = {
        "peft_config": ADAPTERS,
        "learning_rate": 0.03,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    torch.manual_seed(0)
    tiny.trainer(tmp_path, max_steps=1, **changes).train()
    resumed = tiny.trainer(tmp_path, **changes)
    resumed.train(resume_from_checkpoint=True)
    expected = dict(whole.model.named_parameters())
    for name, value in resumed.model.named_parameters():
        assert torch.equal(value, expected[name])


def test_adapters_train_in_float32_under_bf16_products(tmp_path: Path) -> None:
    """As on a GPU: frozen weights in bf16, trained ones in float32, products in bf16."""
    trainer = tiny.trainer(
        tmp_path, model=tiny.policy(torch.bfloat16), peft_config=ADAPTERS, bf16=True,
        learning_rate=0.03, max_steps=2,
    )  # fmt: skip
    assert trainer.policy.precision == torch.bfloat16
    frozen = {n: v.clone() for n, v in trainer.model.named_parameters() if not v.requires_grad}
    trainer.train()
    for name, value in trainer.model.named_parameters():
        if name in frozen:
            assert value.dtype == torch.bfloat16
            assert torch.equal(value, frozen[name])
            continue
        assert value.dtype == torch.float32
        assert value.isfinite().all()
        if "lora_B" in name:
            assert float(value.detach().abs().max()) > 0
    assert all(np.isfinite(line["loss"]) for line in tiny.lines(tmp_path / "metrics.jsonl"))
