"""verl's synchronous trainer, with the curriculum where prompts are drawn and rewards read."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import collate_fn

from dare.curriculum import Services, TrainBatch
from dare.errors import require
from dare.integrations.loop import LoopCurriculum
from dare.integrations.verl.loss import row_clipped_loss
from dare.integrations.verl.rows import ASKED, columns, records, told, trained
from dare.integrations.verl.settings import settings_of
from dare_hints import hint


@register_trainer("dare")
class DareVerlTrainer(PPOTrainerSync):
    """One plan of the curriculum a step; its state is part of verl's checkpoints."""

    def __init__(self, config: Any) -> None:
        # verl takes its asynchronous branches for every mode that is not called so.
        OmegaConf.update(config, "trainer.v1.trainer_mode", "sync")
        self.settings = settings_of(config)
        super().__init__(config=config)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        decode = partial(self.tokenizer.decode, skip_special_tokens=True)
        services = Services(decode=decode, hint=hint)
        self.loop = LoopCurriculum(records(self.train_dataset), self.settings.curriculum, services)

    def on_init_end(self) -> None:
        """The loss reaches the workers, then the weights the engine."""
        actor = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        self.actor_rollout_wg.set_loss_fn(partial(row_clipped_loss, config=actor))
        super().on_init_end()

    def _next_train_batch(self, num_prompts: int | None = None) -> Any:
        """The prompts of the plan, whatever number verl would take."""
        plan = self.loop.curriculum.plan()
        require(plan.train, "plan", plan.kind, "probes are not rolled out by verl; see cold_start")
        asked, table = self.loop.ask(), self.loop.curriculum.prompts
        rows = [self.train_dataset[one.row] for one in asked]
        tests = [table.judged_by_tests(row) for row in table.rows(one.id for one in asked)]
        added = columns(asked, [row["raw_prompt"] for row in rows], tests)
        batch = tu.get_tensordict({**collate_fn(rows), **added})
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch

    def _step_once(self, metrics: dict[str, Any], timing_raw: Any, sample_batch_size: int) -> Any:
        """verl's step over as many prompts as the plan has, then the estimates follow."""
        batch = super()._step_once(metrics, timing_raw, len(self.loop.ask()))
        self.loop.updated()
        figures = self.loop.curriculum.metrics()
        metrics.update({f"dare/{name}": value for name, value in figures.items()})
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's own pass first, for its corrections; then the curriculum's advantages."""
        batch = super()._compute_advantage(batch, metrics)
        places, found = self._tell(batch)
        place = {"keys": batch.keys, "partition_id": batch.partition_id}
        mask = tq.kv_batch_get(**place, select_fields=["response_mask"])["response_mask"]
        mode = self.config.actor_rollout_ref.actor.loss_agg_mode
        fields = trained(found, places, mask.unbind(), mode)
        return tq.kv_batch_put(**place, fields=TensorDict(fields, batch_size=len(batch.keys)))

    def _tell(self, batch: Any) -> tuple[list[int], TrainBatch]:
        """The rows that are rollouts, not padding, and what is to be learnt from them."""
        places = [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        keys = [batch.keys[place] for place in places]
        fields = ["responses", "rm_scores", "extra_fields", ASKED]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
        found = told(keys, data, self.settings.success)
        more = {"conditioning": found.conditioning, "success": found.success}
        batch = self.loop.tell(found.ids, found.rewards, found.tokens, **more)
        assert batch is not None  # of a probe, which was refused
        return places, batch

    def _save_checkpoint(self) -> None:
        """The curriculum's state first: verl names a checkpoint as the latest at its very end."""
        folder = self._state_folder()
        shutil.rmtree(folder, ignore_errors=True)  # of a run that came this far before a resume
        self.loop.save(folder)
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps > 0:
            folder = self._state_folder()
            if self.config.trainer.resume_mode == "resume_path":
                folder = Path(self.config.trainer.resume_from_path) / folder.name
            self.loop.load(folder)

    def _state_folder(self) -> Path:
        step = f"global_step_{self.global_steps}"
        return Path(self.config.trainer.default_local_dir) / step / "dare"
