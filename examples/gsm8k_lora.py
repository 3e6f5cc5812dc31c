"""GSM8K with LoRA on a GPU with 24 GB, in Python; the recipe qwen2.5-1.5b-gsm8k-lora evaluates too.

    python examples/gsm8k_lora.py --model Qwen/Qwen2.5-1.5B-Instruct --data openai/gsm8k
    python examples/gsm8k_lora.py --preset grpo --out runs/gsm8k-lora-grpo    # the baseline

`dare plan qwen2.5-1.5b-gsm8k-lora --gpu 24GB` says whether it fits. It has not been trained to the
end with this version.
"""

from __future__ import annotations

import argparse
from typing import Any

from peft import LoraConfig

from dare import DareConfig, DareTrainer
from dare.data import training_rows
from dare.rewards import gsm8k_reward


def trainer(
    model: Any, rows: Any, folder: str, *, processing_class: Any = None, **settings: Any
) -> DareTrainer:
    """The whole setup; `settings` change any field of `DareConfig`."""
    fields: dict[str, Any] = {
        "system_prompt": "gsm8k",  # asks for the answer after "####"
        "max_steps": 200,
        "learning_rate": 2e-5,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 5,
        "rollout_budget": 256,  # 32 prompts x 8 rollouts a step
        "num_generations": 8,
        "max_completion_length": 512,
        "temperature": 1.0,
        "top_p": 1.0,
        "per_device_train_batch_size": 16,  # rows of a backward pass; lower it if memory is short
        "generation_rows": 256,  # rollouts decoded at once
        "save_steps": 20,
    }
    return DareTrainer(
        model,
        gsm8k_reward,
        DareConfig(folder, **fields | settings),
        rows,
        processing_class=processing_class,
        peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear"),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B-Instruct")
    parser.add_argument("--data", default="openai/gsm8k", help="a hub id or a file")
    parser.add_argument("--preset", default="dare")
    parser.add_argument("--out", default="runs/gsm8k-lora")
    given = parser.parse_args()
    source = {"path": given.data, "config": "main", "split": "train"}
    data = training_rows(source if given.data == "openai/gsm8k" else given.data)
    trainer(given.model, data, given.out, preset=given.preset).train()
