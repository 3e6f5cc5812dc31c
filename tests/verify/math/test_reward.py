"""The reward functions as TRL calls them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import tiny
from dare.errors import InvalidInput
from dare.rewards import gsm8k_reward, math_reward


def test_text_and_conversations() -> None:
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": r"\boxed{1/2}"}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": r"\boxed{0.5}"}]}]
    texts: list[Any] = [r"\boxed{\frac12}", said, parts, "no box", r"\boxed{1}", [], r"\boxed{.5}"]
    golds = ["0.5"] * 6 + [None]
    assert math_reward(texts, golds) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, None]


@pytest.mark.parametrize("name", ["answer", "solution", "gold", "ground_truth", "target"])
def test_the_gold_column_may_have_several_names(name: str) -> None:
    columns = {name: [r"So it is \boxed{2}."], "prompts": ["?"], "level": ["1"]}
    assert math_reward([r"\boxed{2}"], **columns) == [1.0]


def test_a_missing_gold_column_is_named() -> None:
    with pytest.raises(InvalidInput, match="answer, solution, gold"):
        math_reward([r"\boxed{2}"], prompts=["?"])


def test_gsm8k() -> None:
    gold = "He has 3+4=<<3+4=7>>7 apples.\n#### 7"
    texts = [
        "... #### 7",
        r"... \boxed{7}",
        "#### $7.00",
        "#### 8",
        "7",
        "#### 7 apples",
        "#### 7\n",
    ]
    assert gsm8k_reward(texts, [gold] * 7) == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert gsm8k_reward(["#### 1,234"], answer=["#### 1234"]) == [1.0]


def test_importing_rewards_is_light() -> None:
    heavy = "{'sympy', 'math_verify', 'mpmath', 'torch'}"
    code = f"import sys, dare.rewards; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.filterwarnings("ignore")  # TRL's own
def test_grpo_trainer_takes_them_unchanged(tmp_path: Path) -> None:
    seen: list[list[float | None]] = []

    def watched(completions: list[Any], **columns: Any) -> list[float | None]:
        texts = [rf"\boxed{{{text}}}" if isinstance(text, str) else text for text in completions]
        seen.append(math_reward(texts, **columns))
        return seen[-1]

    rows = [{"prompt": f"{a}+1=", "answer": str(a + 1) if a else ""} for a in range(8)]
    trainer = GRPOTrainer(
        model=tiny.policy(),
        reward_funcs=[math_reward, gsm8k_reward, watched],
        args=GRPOConfig(
            output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=8, num_generations=4,
            max_completion_length=4, use_cpu=True, bf16=False, report_to="none", save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tiny.tokenizer(chat=False),
    )  # fmt: skip
    trainer.train()
    assert len(seen) == 2
    assert {value for values in seen for value in values} <= {0.0, 1.0, None}
