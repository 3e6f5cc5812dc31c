"""The curriculum for a training loop of your own: ask what to roll out, tell what came of it.

loop = LoopCurriculum(rows)               # dictionaries with a `prompt`
asked = loop.ask()                        # which prompts, how many rollouts of each
batch = loop.tell(ids, rewards, tokens)   # one entry a rollout, in any order
... update the policy on batch (None: those rollouts served the estimate alone) ...
loop.updated()                            # the policy has changed; save() after it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dare.config import CurriculumConfig
from dare.curriculum import (
    Conditioning,
    Curriculum,
    PromptTable,
    RolloutBatch,
    Services,
    TrainBatch,
)
from dare.curriculum.buffer import Scorer
from dare.errors import require
from dare.state import load_state, save_state


class Asked(NamedTuple):
    """A prompt of the step. Of its `rollouts` the last `helped` are sampled with `help`."""

    id: str
    row: int
    """Its place in the rows that the loop was given."""
    rollouts: int
    max_tokens: int
    helped: int
    help: Conditioning
    hint: list[str]


class LoopCurriculum:
    """One step at a time: the next `ask` knows what the last `tell` said."""

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]],
        config: CurriculumConfig | None = None,
        services: Services | None = None,
    ) -> None:
        self.curriculum = Curriculum(PromptTable.from_records(rows), config, services)
        self._tokens = 0

    def ask(self) -> list[Asked]:
        """What to roll out now, in drawn order. Asking again before `tell` gives the same."""
        plan, table = self.curriculum.plan(), self.curriculum.prompts
        columns = (table.dataset_row_P[plan.prompt_P], plan.group_size_P, plan.max_tokens_P)
        told = (column.tolist() for column in (*columns, plan.extra_P))
        help_P = map(Conditioning, plan.extra_conditioning_P.tolist())
        return list(map(Asked, plan.ids, *told, help_P, plan.hints))

    def tell(
        self,
        ids: Sequence[str],
        rewards: Sequence[float | None],
        tokens: Sequence[Any],
        logprobs: Sequence[Any] | None = None,
        **columns: Any,
    ) -> TrainBatch | None:
        """What came of the asked rollouts; returns advantages, weights and clips in that order.

        A reward of None: nobody could score it. Of a prompt's rollouts the helped ones come last;
        one that was lost may be left out. `tokens` are the ids of each response or, where nothing
        is replayed and nobody helped, their number. `columns` as in `RolloutBatch.from_lists`.
        """
        curriculum, config = self.curriculum, self.curriculum.config
        if len(tokens) and np.ndim(tokens[0]) == 0:
            fix = "give the token ids of each response: replay and hints read them"
            require(not (config.replays or config.helps), "tokens", tokens[0], fix)
            tokens = [np.zeros(count, np.int32) for count in tokens]
        fix = (
            f"give those of the policy that sampled: {config.estimator.name!r} or replay reads them"
        )
        known = logprobs is not None or curriculum.wants_scores == "none"
        require(known, "logprobs", logprobs, fix)
        asked = curriculum.plan().rows()
        help_P: dict[int, list[int]] = {}
        for row, kind in zip(asked["prompt"].tolist(), asked["conditioning"].tolist(), strict=True):
            help_P.setdefault(row, []).append(kind)
        prompt_R = curriculum.prompts.rows(ids)
        help_R = []
        for row, name in zip(prompt_R.tolist(), ids, strict=True):
            fix = "was told of more rollouts than were asked for, or was not asked for"
            require(help_P.get(row), "prompt id", name, fix)
            help_R.append(help_P[row].pop(0))
        columns = {"conditioning": help_R, **columns}
        rollouts = RolloutBatch.from_lists(prompt_R, tokens, logprobs, rewards, **columns)
        batch = curriculum.observe(rollouts)
        self._tokens += len(rollouts.tokens)
        return batch

    def updated(self, scorer: Scorer | None = None) -> int:
        """The policy has learnt from the batch: estimates follow. Returns the tokens it read."""
        budget = self.curriculum.config.estimator.refresh_budget(self._tokens)
        self._tokens = 0
        return self.curriculum.refresh(scorer, budget)

    def save(self, folder: str | Path) -> None:
        """Write all that a resume needs, between `updated` and `ask`, as a new folder."""
        save_state(self.curriculum.state_dict(), folder)

    def load(self, folder: str | Path) -> None:
        """Go on from there: the next `ask` is the one that would have followed."""
        self.curriculum.load_state_dict(load_state(folder))
