"""verl on a CPU up to its rollout engine, which is played here: a client that answers by chance.

Real are the configuration, the data set, Ray, the queue, the agent loops, the reward workers, the
replay buffer, verl's `fit` with all its steps, its FSDP2 engine, mini-batches, optimiser and
checkpoints. Played are the engine's client, the transfer of weights to it, and the worker group:
its one worker lives in this process.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import ray
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_dir
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from verl.experimental.reward_loop import RewardLoopManager
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.rollout.replica import TokenOutput

from dare.integrations.verl.trainer import DareVerlTrainer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "verl"
CHARS = "0123456789+-*=()?!.,:'\n \\{}$" + "".join(map(chr, (*range(65, 91), *range(97, 123))))
VOCABULARY = {"<pad>": 0, "<end>": 1, "<unk>": 2} | {c: i + 3 for i, c in enumerate(CHARS)}
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
TOKENS = 24
_REWARDS: list[Any] = []


def save_model(folder: Path) -> Path:
    """A small policy and its tokenizer."""
    inner = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<end>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **special)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 768}
    ends = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
    policy = LlamaForCausalLM(LlamaConfig(vocab_size=len(VOCABULARY), **sizes, **ends))
    policy.save_pretrained(folder)
    return folder


def save_rows(path: Path, chances: list[float]) -> Path:
    """Prompts with the chance that a response is right, in the form of verl's data sets."""
    with path.open("w", encoding="utf-8") as file:
        for number, chance in enumerate(chances):
            row = {
                "data_source": "coins",
                "prompt": [{"role": "user", "content": f"coin {number} of {chance}?"}],
                "reward_model": {"style": "rule", "ground_truth": "1"},
                "extra_info": {"index": number},
            }
            file.write(json.dumps(row) + "\n")
    return path


def configure(model: Path, data: Path, output: Path, *changes: str) -> Any:
    """The shipped example, made small."""
    overrides = [
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        f"data.train_files={data}",
        f"data.val_files={data}",
        "data.train_batch_size=8",
        "data.max_prompt_length=512",
        f"data.max_response_length={TOKENS}",
        "data.dataloader_num_workers=0",
        "data.filter_overlong_prompts=false",
        f"reward.custom_reward_function.path={Path(__file__).with_name('coins.py')}",
        "reward.num_workers=1",
        "trainer.n_gpus_per_node=1",
        "trainer.device=cpu",
        f"trainer.default_local_dir={output}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        *changes,
    ]
    with initialize_config_dir(str(EXAMPLES), version_base=None):
        return compose("dare", overrides=overrides)


class Client:
    """The engine: "1" by the prompt's chance, else "0", then some tokens. `lost`: a prompt whose
    first rollout never comes back."""

    def __init__(self, tokenizer: Any, lost: str) -> None:
        self.tokenizer, self.random, self.lost = tokenizer, random.Random(0), lost

    async def generate(self, *, prompt_ids: list[int], sampling_params: Any, **_: Any) -> Any:
        shown = self.tokenizer.decode(prompt_ids)
        if self.lost and self.lost in shown:
            self.lost = ""
            raise RuntimeError("the engine has lost a rollout")
        chance = float(shown.split(" of ")[1].split("?")[0])
        answer = "1" if self.random.random() < chance else "0"
        limit = sampling_params["max_tokens"]
        length = self.random.randint(2, limit)
        ids = [VOCABULARY[answer], *[VOCABULARY["."]] * (length - 1)]
        seen = {"shown": shown, "limit": limit, "min_global_steps": 0, "max_global_steps": 0}
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * length, extra_fields=seen)


class Workers:
    """verl's actor in this process, behind the calls that the trainer makes of a worker group."""

    _dispatch_info = {"actor": [0]}  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        self.worker = ActorRolloutRefWorker(config=config.actor_rollout_ref, role="actor")
        self.worker.init_model()
        self.passes: list[Any] = []

    def set_loss_fn(self, loss: Any) -> None:
        loss = ray.cloudpickle.loads(ray.cloudpickle.dumps(loss))  # as it reaches a worker

        def watched(model_output: Any, data: Any, dp_group: Any = None) -> Any:
            made, metrics = loss(model_output=model_output, data=data, dp_group=dp_group)
            self.passes.append((data.clone(), made.detach()))
            return made, metrics

        self.worker.set_loss_fn(watched)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)


class Step(NamedTuple):
    """What a plan asked for, what the queue had when the curriculum was told, what that gave."""

    asked: list[Any]
    keys: list[str]
    data: Any
    places: list[int]
    batch: Any


class Cpu(DareVerlTrainer):
    """The trainer where verl would start workers and engines on GPUs."""

    def _setup(self) -> None:
        self._init_tokenizer()
        self._init_dataloader()
        self._init_dump_executor()
        self.actor_rollout_wg = Workers(self.config)
        self.ref_in_actor, self.distillation_config = False, None
        if not _REWARDS:  # its workers have fixed names
            _REWARDS.append(RewardLoopManager(config=self.config, rm_resource_pool=None))
        self.reward_loop_manager = _REWARDS[0]
        nothing = {"update_weights": lambda *_: None, "sleep_replicas": lambda: None}
        self.checkpoint_manager = SimpleNamespace(**nothing)
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        self.asked: list[Any] = []
        self.steps: list[Step] = []
        self._load_checkpoint()

    def _next_train_batch(self, num_prompts: int | None = None) -> Any:
        self.asked.append(self.loop.ask())
        return super()._next_train_batch(num_prompts)

    def _tell(self, batch: Any) -> Any:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        places, found = super()._tell(batch)
        self.steps.append(Step(self.asked[-1], list(batch.keys), data, places, found))
        return places, found

    def run(self, lost: str = "") -> None:
        """As verl's task runner has it."""
        self.init()
        manager = AgentLoopManagerTQ.create(
            config=self.config,
            llm_client=Client(self.tokenizer, lost),
            teacher_client=None,
            reward_loop_worker_handles=self.get_reward_handles(),
        )
        self.fit(manager)
