"""What an update trains on, as micro-batches, and what its own pass says of the rollouts.

The pass that computes the loss computes the log-probs of every rollout it trains on, under the
policy that is about to change. In the first update of a step they are the behaviour log-probs of
rollouts sampled in it, and in every update today's score of replayed ones: no other pass is made
for either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from dare.config import CurriculumConfig
from dare.curriculum import Curriculum, TrainBatch
from dare.curriculum.arrays import Array, keyed_rng
from dare.curriculum.plan import StepPlan
from dare.curriculum.rollouts import Conditioning, Finish
from dare.policy.policy import Policy
from dare.training.collect import Collector
from dare.training.config import DareConfig
from dare.training.micro import micro_batch, mini_batches, shares
from dare.training.phases import Phases
from dare_decoder.batching import IntArray


def token_weights(
    batch: TrainBatch, loss_type: str, max_tokens: int, *, mask_truncated: bool = False
) -> Array:
    """Per rollout the weight of one of its tokens, 0 where it is not trained on.

    grpo          the mean over prompts, over a group's rollouts, over a rollout's tokens
    dapo, cispo   every token alike: one over the tokens of all rollouts
    dr_grpo       every token alike: one over the rollouts times `max_tokens`

    As in TRL, a cut-off rollout that is masked counts among the rollouts, but its tokens do not.
    """
    usable = batch.weight_R > 0
    shown = usable & (batch.rollouts.finish_R != Finish.LENGTH) if mask_truncated else usable
    length = batch.rollouts.length_R
    if loss_type == "grpo":
        weight = batch.weight_R / np.maximum(length, 1)
    elif loss_type == "dr_grpo":
        weight = np.full(len(length), 1.0 / (max(int(usable.sum()), 1) * max_tokens))
    else:
        weight = np.full(len(length), 1.0 / max(int(length[shown].sum()), 1))
    return np.where(shown, weight, 0.0)


def trained_rows(
    batch: TrainBatch, weight_R: Array, beta: float, replays: bool = False
) -> IntArray:
    """Rows with a gradient. Without a KL term a rollout of advantage 0 has none: it is not read.

    In a group with others that have one it is, if groups are replayed: for that all rollouts of a
    group need their log-probs.
    """
    useful = weight_R > 0
    if beta == 0.0:
        useful = useful & (batch.advantage_R != 0)
    if replays:
        useful = useful | ((batch.weight_R > 0) & batch.varied_N[batch.group_R])
    return np.flatnonzero(useful)


def micro_batches(
    batch: TrainBatch,
    prompts: list[IntArray],
    rows: IntArray,
    policy: Policy,
    weight_R: Array,
    *,
    count: int,
    rank: int,
    processes: int,
    updates: int = 1,
    all_of_them: bool = False,
    flat: Mapping[str, Array] | None = None,
) -> list[dict[str, Any]]:
    """This process's share of the rows, with about as many tokens in each micro-batch.

    The rows are one of `updates` mini-batches. At most `count` micro-batches: each is as large as
    one of all rollouts in `count` parts an update, and rollouts without a gradient are not read,
    so that fewer will do. `all_of_them` is for engines that count backward passes themselves;
    `flat` has more values of every token, by name.
    """
    layout = policy.layout
    every = np.array([len(prompt) for prompt in prompts], int) + batch.rollouts.length_R
    lengths = every[rows]
    busy = float(lengths.sum()) / max(1, int(every.sum()))
    needed = count if all_of_them else min(count, max(1, math.ceil(count * updates * busy)))
    hands = shares(lengths, processes, needed, packed=layout.packed)
    result = []
    for part in hands[rank]:
        if len(part):
            result.append(micro_batch(batch, prompts, rows[part], layout, weight_R, flat))
            continue
        # Every process runs the same number of passes: an empty share reads one row in vain.
        shortest = np.array([int(np.argmin(batch.rollouts.length_R))])
        dummy = micro_batch(batch, prompts, shortest, layout, 0.0 * weight_R, flat)
        dummy["rows"] = shortest[:0]
        result.append(dummy)
    return result


@dataclass(frozen=True)
class Prepared:
    """What the updates of a step read, one a tick, None where there is nothing to do."""

    ticks: list[dict[str, Any] | None]
    own_pass: OwnPass | None
    """None where the pass of an update is not that of the policy that samples."""
    mass: float
    """Of all tokens: clipped shares and divergences are means, also where it is not 1."""


class Updates:
    """From a plan's batch to this process's micro-batches of all updates."""

    def __init__(
        self,
        args: DareConfig,
        settings: CurriculumConfig,
        collector: Collector,
        *,
        all_of_them: bool,
    ) -> None:
        self._args, self._settings, self._all_of_them = args, settings, all_of_them
        self._collector, self._policy = collector, collector.policy

    def scored_at_once(self, plan: StepPlan, wanted: str) -> list[Conditioning]:
        """Rollouts whose behaviour log-probs no update will give: those of probes where the
        estimator reads them, helped ones that are trained on without their help, and all that are
        read where the update's pass drops out. `wanted` is what the curriculum wants scores of."""
        if not plan.train or (self._policy.drops_out and wanted != "none"):
            return list(Conditioning) if plan.train or wanted == "all" else []
        if self._args.hint_conditioning != "original":
            return []
        return [kind for kind in list(Conditioning) if kind != Conditioning.PLAIN]

    def prepare(
        self, plan: StepPlan, batch: TrainBatch, curriculum: Curriculum, phases: Phases
    ) -> Prepared:
        """Weigh, deal out and score ahead; every process takes part."""
        args, settings, company = self._args, self._settings, self._collector.company
        prompts = self.prompts(plan, batch)
        masked = args.mask_truncated_completions
        weight = token_weights(batch, args.loss_type, settings.max_tokens, mask_truncated=masked)
        mass = round(float(weight @ batch.rollouts.length_R), 9) or 1.0
        rows = trained_rows(batch, weight, args.beta, settings.replays)
        rng = keyed_rng(settings.seed, plan.step, "mini-batches")
        parts = mini_batches(rows, batch.group_R, args.mini_batches, rng)
        batch = self._score_ahead(batch, prompts, rows, parts[0], curriculum, phases)
        flat = self._collector.of_engine(batch.rollouts)
        if args.beta > 0:
            with phases.measure("score"):
                flat["reference"] = self._collector.reference(batch.rollouts, prompts)
        length, ticks = batch.rollouts.length_R, list[dict[str, Any] | None]()
        for part in parts:
            micro = micro_batches(
                batch,
                prompts,
                part,
                self._policy,
                weight * len(parts),  # a mean over the part, not its share of the whole's
                count=args.gradient_accumulation_steps,
                rank=company.rank,
                processes=company.processes,
                updates=len(parts),
                all_of_them=self._all_of_them,
                flat=flat,
            )
            phases.count("trained", args.num_iterations * int(length[part].sum()))
            # Idle ticks come first: gradients are exchanged at the last one, which must have some.
            ticks += [*[None] * (args.gradient_accumulation_steps - len(micro)), *micro]
        own_pass = None if self._policy.drops_out else OwnPass(batch)
        return Prepared(ticks * args.num_iterations, own_pass, mass)

    def prompts(self, plan: StepPlan, batch: TrainBatch) -> list[IntArray]:
        """Token ids before each response: the original prompt, or the one it was sampled under."""
        hinted = self._args.hint_conditioning == "hinted"
        place_of = {int(row): place for place, row in enumerate(plan.prompt_P)}
        prompts = []
        for row, kind, fresh in zip(
            batch.rollouts.prompt_R.tolist(),
            batch.rollouts.conditioning_R.tolist(),
            batch.fresh_R.tolist(),
            strict=True,
        ):
            # The hint of a replayed rollout is not kept: it is trained on the original prompt.
            if hinted and kind != Conditioning.PLAIN and fresh:
                prompts.append(self._collector.shown(row, kind, plan.hints[place_of[row]]))
            else:
                prompts.append(self._collector.store.tokens(row))
        return prompts

    def _score_ahead(
        self,
        batch: TrainBatch,
        prompts: list[IntArray],
        trained: IntArray,
        first: IntArray,
        curriculum: Curriculum,
        phases: Phases,
    ) -> TrainBatch:
        """The batch with the behaviour log-probs that no pass of its `first` update gives: of what
        only later ones train on, and of plain rollouts that teach nothing where an estimator reads
        all."""
        rollouts, wanted = batch.rollouts, curriculum.wants_scores
        ahead = rollouts.plain_R if wanted == "all" else np.zeros(len(rollouts), bool)
        ahead = ahead & ~np.isin(np.arange(len(rollouts)), trained)
        if self._args.updates_per_generation > 1:
            ahead[trained] = True
            # With dropout the first pass is not that of the policy that sampled.
            ahead[first] = self._policy.drops_out
        rows = np.flatnonzero(ahead & ~rollouts.has_behaviour_R & (batch.uid_R >= 0))
        if not len(rows):
            return batch
        shown = dict(enumerate(prompts))
        with phases.measure("score"):
            found = self._collector.with_behaviour(rollouts, rows, phases, shown)
        if wanted != "none":
            curriculum.record_behaviour(
                batch.uid_R[rows],
                [found.logprobs[found.offsets[row] : found.offsets[row + 1]] for row in rows],
                found.total_logprob_R[rows],
            )
        return replace(batch, rollouts=found)


class OwnPass:
    """Log-probs that the passes of a step's updates gave, kept until the curriculum is told."""

    def __init__(self, batch: TrainBatch) -> None:
        self._batch = batch
        late = ~batch.rollouts.has_behaviour_R
        plain = batch.rollouts.conditioning_R == Conditioning.PLAIN
        # Helped rollouts are scored under their help before the update: what the update says of
        # them under the plain prompt is another number.
        self._behaviour = batch.fresh_R & late & (batch.uid_R >= 0)
        self._score = ~batch.fresh_R & plain
        self._found: dict[int, tuple[Array, float]] = {}
        self._updated = False

    def updated(self) -> None:
        """The weights have changed: from now on no pass says anything of the behaviour."""
        self._updated = True

    def asks(self, rows: IntArray) -> bool:
        """Whether a pass over these rows has something to tell."""
        return not self._updated or bool(self._score[rows].any())

    def note(self, rows: IntArray, logprob: Tensor, kept: Tensor | None) -> None:
        """Log-probs [N] of these rows' tokens, one behind another, and [2, N] of the nucleus: the
        log of what it keeps at each, and whether the token is outside of it."""
        if not len(rows):
            return
        tokens = logprob.detach().float().cpu().numpy()
        exact, outside = tokens, np.zeros(len(tokens), bool)
        if kept is not None:
            mass, left_out = kept.float().cpu().numpy()
            exact, outside = tokens - mass, left_out > 0
        ends = np.cumsum(self._batch.rollouts.length_R[rows])
        for row, end in zip(rows.tolist(), ends.tolist(), strict=True):
            part = slice(end - int(self._batch.rollouts.length_R[row]), end)
            # Rounding may leave a token above certainty; a probability is not.
            total = float(np.minimum(exact[part], 0.0).sum(dtype=np.float64))
            # What this policy drew is inside, whatever rounding says; an old one may be impossible.
            if not self._behaviour[row] and outside[part].any():
                total = -np.inf
            if self._score[row] or not self._updated:  # of scores the latest counts
                self._found[row] = tokens[part], total

    def found(self) -> dict[str, Array]:
        """What this process has found, to gather."""
        rows = sorted(self._found)
        tokens = [self._found[row][0] for row in rows]
        return {
            "row": np.array(rows, np.int64),
            "total": np.array([self._found[row][1] for row in rows]),
            "logprobs": np.concatenate([np.empty(0, np.float32), *tokens]),
        }

    def deliver(
        self, curriculum: Curriculum, step: int, everyone: Sequence[Mapping[str, Array]]
    ) -> None:
        """Tell the curriculum, on every process, what all of them `found`."""
        row, total = (np.concatenate([one[name] for one in everyone]) for name in ("row", "total"))
        tokens: list[Array] = []
        for one in everyone:
            ends = np.cumsum(self._batch.rollouts.length_R[one["row"]])
            tokens += np.split(one["logprobs"], ends)[:-1]  # the last is what is behind the end
        order, uid = np.argsort(row), self._batch.uid_R
        new = order[self._behaviour[row[order]]]
        curriculum.record_behaviour(uid[row[new]], [tokens[place] for place in new], total[new])
        old = order[self._score[row[order]]]
        curriculum.record_scores(uid[row[old]], total[old], step)
        self._found = {}
