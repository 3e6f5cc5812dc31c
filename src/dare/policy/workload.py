"""What one device does in a step, as far as memory depends on it."""

from __future__ import annotations

from dataclasses import dataclass

from dare.policy.shape import ModelShape


@dataclass(frozen=True)
class Workload:
    """What one device does in a step. Fields that are settings have the setting's name."""

    shape: ModelShape
    prompt_tokens: float
    """Of a prompt, in the mean."""
    max_completion_length: int
    rollout_budget: int
    """Over all processes."""
    per_device_train_batch_size: int
    mean_response: float | None = None
    """Tokens of a response in the mean; without it every response runs to its limit."""
    group_size: int = 8
    generated_at_most: int = 0
    """Rollouts of the largest generation over all processes (cold start, evaluation), where that
    is more than the budget."""
    fresh_share: float = 1.0
    num_iterations: int = 1
    generation_rows: int = 512
    score_batch_tokens: int = 16384
    scores: bool = True
    mixed_precision: bool = False
    gradient_checkpointing: bool = False
    beta: float = 0.0
    optim: str = "adamw_torch_fused"
    processes: int = 1

    @property
    def response_tokens(self) -> float:
        """Of a response, in the mean."""
        given = self.mean_response
        limit = self.max_completion_length
        return float(limit if given is None else min(given, limit))

    @property
    def precision(self) -> str:
        """`half`: weights of 16 bits; `mixed`: float32 weights, 16-bit products; or `float`."""
        if self.shape.weight_size <= 2:
            return "half"
        return "mixed" if self.mixed_precision else "float"

    @property
    def computed(self) -> int:
        """Bytes of a number that products are made with: the decoder's weights and cache."""
        return 4 if self.precision == "float" else 2

    @property
    def micro_batch_tokens(self) -> float:
        """Prompts and responses of one backward pass; rows are packed, so none is padding."""
        return self.per_device_train_batch_size * (self.prompt_tokens + self.response_tokens)

    @property
    def micro_batches(self) -> int:
        """Backward passes of a step on each process."""
        once = -(-self.rollout_budget // (self.per_device_train_batch_size * self.processes))
        return self.num_iterations * once

    @property
    def rows(self) -> int:
        """Rollouts decoded at once."""
        most = max(self.rollout_budget, self.generated_at_most)
        return max(1, min(-(-most // self.processes), self.generation_rows))

    def step_tokens(self) -> dict[str, int]:
        """Tokens of a step over all processes: sampled, and read when training."""
        fresh = round(self.fresh_share * self.rollout_budget)
        whole = self.prompt_tokens + self.response_tokens
        return {
            "rollouts": self.rollout_budget,
            "fresh_rollouts": fresh,
            "generated": round(fresh * self.response_tokens),
            "trained": round(self.num_iterations * self.rollout_budget * whole),
            "micro_batches": self.micro_batches,
            "micro_batch": round(self.micro_batch_tokens),
        }
