"""The shapes of TRL's README, example scripts and reward tests, with its class names changed.

What becomes of each is a table of docs/from_trl.md; this file, run as a script, writes it anew.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForSequenceClassification
from trl import ModelConfig, ScriptArguments, TrlParser
from trl.rewards import accuracy_reward, think_format_reward

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny
from dare import DareConfig, DareTrainer, InvalidInput

PAGE = Path(__file__).parents[2] / "docs" / "from_trl.md"
BEGIN, END = "<!-- made by tests/training/test_trl_shapes.py -->\n", "<!-- end -->\n"
SMALL: dict[str, Any] = {
    "max_steps": 2,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 8,
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
    "save_strategy": "no",
}


def rows(*, chat: bool = False, **columns: Any) -> Dataset:
    """Sums, as texts or as messages, with more columns if asked."""
    texts = [f"{n}+1=" for n in range(16)]
    prompts = [[{"role": "user", "content": text}] if chat else text for text in texts]
    more = {name: [make(n) for n in range(16)] for name, make in columns.items()}
    return Dataset.from_dict({"prompt": prompts, **more})


def length(completions: Any, **kwargs: Any) -> list[float]:
    """TRL's first example: anything but a share."""
    return [-abs(20.0 - len(completion)) for completion in completions]


def digits(completions: Any, **kwargs: Any) -> list[float]:
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]


def spoken(completions: Any, **kwargs: Any) -> list[float]:
    return [float(completion[0]["content"][:1].isdigit()) for completion in completions]


def even(completions: Any, task: list[str], **kwargs: Any) -> list[float | None]:
    return [float(len(c) % 2) if t == "a" else None for c, t in zip(completions, task, strict=True)]


def odd(completions: Any, task: list[str], **kwargs: Any) -> list[float | None]:
    return [
        float(c[:1] > "5") if t == "b" else None for c, t in zip(completions, task, strict=True)
    ]


async def awaited(completions: Any, **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return digits(completions)


def with_column(completions: Any, hidden: list[str], **kwargs: Any) -> list[float]:
    return [float(h in c) for c, h in zip(completions, hidden, strict=True)]


def with_state(completions: Any, trainer_state: Any, **kwargs: Any) -> list[float]:
    assert trainer_state.global_step >= 0
    return digits(completions)


def with_logs(completions: Any, log_metric: Any, log_extra: Any, **kwargs: Any) -> list[float]:
    log_metric("answers", 1.0)
    log_extra("note", ["x"] * len(completions))
    return digits(completions)


def of_environments(environments: Any, **kwargs: Any) -> list[float]:
    return [0.0 for _ in environments]


def reward_model() -> Any:
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    small |= {"num_attention_heads": 2, "vocab_size": len(tiny.VOCABULARY), "num_labels": 1}
    return LlamaForSequenceClassification(LlamaConfig(**small, pad_token_id=tiny.PAD))


@dataclass
class Shape:
    """What a script gives to the trainer beside its model."""

    rewards: Any
    data: Any = field(default_factory=rows)
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)


CHAT = {"chat_template_kwargs": {"enable_thinking": False}, "log_completions": True}
SHAPES: dict[str, Callable[[], Shape]] = {
    "README: `reward_funcs=accuracy_reward` on a data set with `solution`": lambda: Shape(
        accuracy_reward, rows(chat=True, solution=lambda n: f"${n + 1}$")
    ),
    "`grpo_continuous_batching.py`: `use_transformers_continuous_batching=True`": lambda: Shape(
        digits, settings={"use_transformers_continuous_batching": True}
    ),
    "`gspo.py`: `importance_sampling_level='sequence'`, `epsilon`, `steps_per_generation`": (
        lambda: Shape(
            [think_format_reward, accuracy_reward],
            rows(chat=True, solution=lambda n: f"${n + 1}$"),
            {
                "importance_sampling_level": "sequence",
                "epsilon": 3e-4,
                "epsilon_high": 4e-4,
                "steps_per_generation": 4,
                "beta": 0.0,
                "loss_type": "grpo",
            },
        )
    ),
    "`grpo_2048.py`: `environment_factory`": lambda: Shape(
        of_environments, rows(chat=True), CHAT, {"environment_factory": dict}
    ),
    "`grpo_agent.py`: `tools`": lambda: Shape(digits, rows(chat=True), CHAT, {"tools": [print]}),
    "`grpo_vlm.py`: a column `image`": lambda: Shape(
        think_format_reward, rows(chat=True, image=lambda n: None)
    ),
    "`openenv/*.py`: `rollout_func`": lambda: Shape(digits, arguments={"rollout_func": print}),
    "`vllm_structured_outputs_regex='[0-9]+'`": lambda: Shape(
        digits, settings={"vllm_structured_outputs_regex": "[0-9]+"}
    ),
    "`peft_config=LoraConfig()`": lambda: Shape(
        digits, arguments={"peft_config": LoraConfig(target_modules=["q_proj", "v_proj"])}
    ),
    "`num_train_epochs=1`, nothing of `max_steps`": lambda: Shape(
        digits, settings={"max_steps": -1, "num_train_epochs": 1}
    ),
    "`eval_dataset` as a dictionary, `num_generations_eval`": lambda: Shape(
        digits,
        settings={"eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 2},
        arguments={"eval_dataset": {"a": rows(), "b": rows()}},
    ),
    "`eval_dataset` as a `DatasetDict`": lambda: Shape(
        digits,
        settings={"eval_strategy": "steps", "eval_steps": 2},
        arguments={"eval_dataset": DatasetDict({"test": rows()})},
    ),
    "an iterable data set": lambda: Shape(digits, rows().to_iterable_dataset()),
    "reward: plain, on texts": lambda: Shape(digits),
    "reward: any range, `-abs(20 - len(c))`": lambda: Shape(length),
    "reward: conversational": lambda: Shape(spoken, rows(chat=True)),
    "reward: with a column of the data": lambda: Shape(
        with_column, rows(hidden=lambda n: str(n + 1))
    ),
    "rewards: several": lambda: Shape([digits, with_column], rows(hidden=lambda n: "1")),
    "rewards: several, `reward_weights`": lambda: Shape(
        [digits, digits], settings={"reward_weights": [0.7, 0.3]}
    ),
    "rewards: routed, `None` for rows of the other": lambda: Shape(
        [even, odd], rows(task=lambda n: "ab"[n % 2])
    ),
    "rewards: `async def` and plain": lambda: Shape([awaited, digits]),
    "reward: a sequence classifier": lambda: Shape(
        reward_model(), arguments={"reward_processing_classes": tiny.tokenizer()}
    ),
    "reward: `trainer_state`": lambda: Shape(with_state),
    "reward: `log_metric`, `log_extra`": lambda: Shape(with_logs),
    **{
        f"`loss_type='{kind}'`": lambda kind=kind: Shape(digits, settings={"loss_type": kind})
        for kind in ("dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo")
    },
    **{
        f"`scale_rewards={value!r}`": lambda value=value: Shape(
            digits, settings={"scale_rewards": value}
        )
        for value in (True, "batch", False)
    },
    "`mask_truncated_completions=True`, `num_iterations=2`": lambda: Shape(
        digits, settings={"mask_truncated_completions": True, "num_iterations": 2}
    ),
    "`generation_kwargs={'num_beams': 2}`": lambda: Shape(
        digits, settings={"generation_kwargs": {"num_beams": 2}}
    ),
    "`multi_objective_aggregation='normalize_then_sum'`": lambda: Shape(
        [digits, digits], settings={"multi_objective_aggregation": "normalize_then_sum"}
    ),
    "`delta=1.5`": lambda: Shape(digits, settings={"delta": 1.5}),
    "`sync_ref_model=True`": lambda: Shape(digits, settings={"sync_ref_model": True}),
    "`top_entropy_quantile=0.2`": lambda: Shape(digits, settings={"top_entropy_quantile": 0.2}),
    "`entropy_coef=0.01`": lambda: Shape(digits, settings={"entropy_coef": 0.01}),
    "`max_prompt_length=512`": lambda: Shape(digits, settings={"max_prompt_length": 512}),
}


def outcome(name: str, folder: Path) -> str:
    """`runs`, or the sentence that the user reads; anything else is a failure of the test."""
    shape = SHAPES[name]()
    try:
        trainer = DareTrainer(
            model=tiny.policy(),
            reward_funcs=shape.rewards,
            args=DareConfig(str(folder), **{**SMALL, **shape.settings}),
            train_dataset=shape.data,
            processing_class=tiny.tokenizer(),
            **shape.arguments,
        )
        trainer.train()
    except InvalidInput as error:
        text = re.sub(r" at 0x\w+", "", str(error))
        return text.replace("|", "\\|")
    assert trainer.state.global_step == trainer.state.max_steps > 0
    steps = tiny.lines(folder / "metrics.jsonl")
    unscored = sum(step["unscored"] for step in steps) / sum(step["rollouts"] for step in steps)
    return "runs" if unscored < 1 else "runs, but no rollout is scored"


def table() -> str:
    lines = ["| TRL | here |", "|---|---|"]
    for name in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(f"| {name} | {outcome(name, Path(folder))} |")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    text = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    found = re.findall(r"^\| (.+?) \| (.+) \|$", text, re.M)[1:]
    return dict(found)


def test_the_table_has_every_shape(written: dict[str, str]) -> None:
    assert list(written) == list(SHAPES)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_of_trls_runs_or_is_answered_by_a_sentence(
    name: str, written: dict[str, str], tmp_path: Path
) -> None:
    assert outcome(name, tmp_path) == written[name]


def test_trls_parser_fills_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its example scripts begin."""
    words = ["--model_name_or_path", "tiny", "--output_dir", str(tmp_path), "--use_cpu", "true"]
    words += ["--num_generations", "4", "--gradient_accumulation_steps", "2", "--bf16", "false"]
    parser = TrlParser((ScriptArguments, DareConfig, ModelConfig))
    _, settings, model = parser.parse_args_and_config(words)
    settings.model_init_kwargs = {"attn_implementation": "sdpa", "dtype": model.dtype}
    settings.chat_template_kwargs = {"enable_thinking": False}
    assert settings.curriculum_config().rollout_budget == 16


if __name__ == "__main__":
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(head + BEGIN + table() + END + rest.partition(END)[2], "utf-8")
