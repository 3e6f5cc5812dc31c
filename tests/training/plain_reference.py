"""The objective of a step written out in plain PyTorch, one rollout at a time, in float64.

It shares no code with the trainer: groups are lists, advantages are computed from raw rewards,
and every log-prob comes from a forward pass of one unpadded sequence and a full log-softmax. What
it takes from a run is what no one can recompute: which prompts were planned at which difficulty,
the sampled tokens, their rewards, and the weights of the policy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import gather_object
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

import tiny
from dare.curriculum.arrays import keyed_rng
from dare.templates import load_template

PLAIN, THINK, HINTED = 0, 1, 2
CUT = 1
EASY, HARD = 0.3, 0.8
LAMBDA, FLOOR = 1e-4, 1e-6
CLIP = {"easy": (0.2, 0.6), "medium": (0.2, 0.2), "hard": (0.2, 0.2)}


@dataclass
class Rollout:
    """One response and the prompts it was sampled from and is trained on."""

    response: list[int]
    reward: float | None
    conditioning: int
    shown: list[int]
    trained: list[int]
    behaviour: list[float]
    cut: bool = False
    row: int = -1


@dataclass
class Group:
    """The rollouts of one prompt in one step, and the difficulty that shapes them."""

    difficulty: float
    rollouts: list[Rollout] = field(default_factory=list)
    replayed: bool = False


@dataclass
class Step:
    """What the reference says of one step, and what the trainer did."""

    loss: float
    clipped: float
    kl: float
    reference: dict[str, torch.Tensor]
    gradient: dict[str, torch.Tensor]
    groups: list[Group]
    ratios: list[float]
    selection: list[tuple[str, float, int]]
    thinned: int = 0
    """Rollouts whose small advantage was drawn to count nothing."""

    def distance(self) -> float:
        """The largest difference of any entry of the gradient."""
        gaps = [
            float((self.gradient[name].double() - value).abs().max())
            for name, value in self.reference.items()
            if name in self.gradient
        ]
        return max(gaps, default=math.nan)  # a step that was not checked is close to nothing


def whole(tensor: Any) -> Any:
    """A tensor of which each process may have a part: of FSDP2 or of ZeRO-3."""
    if hasattr(tensor, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([tensor]):
            return tensor.detach().clone()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def whole_weights(model: Any) -> dict[str, Any]:
    """The state of a model, whole."""
    return {name: whole(one) for name, one in model.state_dict(keep_vars=True).items()}


def logprobs(model: Any, prompt: list[int], response: list[int], temperature: float) -> Any:
    """Log-prob of each response token over the full vocabulary."""
    logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    table = (logits / temperature).log_softmax(-1)
    return table[torch.arange(len(response)), torch.tensor(response)]


def tier(difficulty: float, treated: Collection[str] = ("easy", "hard")) -> str:
    """easy / medium / hard (METHOD 6); a tier that is not treated counts as medium."""
    kind = "easy" if difficulty < EASY else "hard" if difficulty > HARD else "medium"
    return kind if kind in treated else "medium"


def advantages(group: Group, treated: Collection[str], alone: bool) -> list[float | None]:
    """Shaped rewards, standardised inside the group; None for a rollout without a reward.

    Where all raw rewards are equal nothing is left, unless length terms `alone` may count.
    """
    scored = [rollout for rollout in group.rollouts if rollout.reward is not None]
    if len(scored) < 2:
        return [None] * len(group.rollouts)
    longest = max(len(rollout.response) for rollout in scored)
    d, kind = group.difficulty, tier(group.difficulty, treated)
    shaped = []
    for rollout in scored:
        reward, share = rollout.reward, len(rollout.response) / longest
        assert reward is not None
        if kind == "easy" and reward == 1.0:
            reward -= LAMBDA * min(1.0, max(0.0, (EASY - d) / EASY)) * share
        if kind == "hard" and reward == 0.0:
            reward += LAMBDA * min(1.0, max(0.0, (d - HARD) / (1.0 - HARD))) * share
        shaped.append(reward)
    mean = sum(shaped) / len(shaped)
    std = math.sqrt(sum((value - mean) ** 2 for value in shaped) / len(shaped))
    silent = len({rollout.reward for rollout in scored}) < 2 and not alone
    values = iter([0.0 if silent else (value - mean) / (std + FLOOR) for value in shaped])
    return [None if rollout.reward is None else next(values) for rollout in group.rollouts]


def weights(usable: list[Group], args: Any, longest: int) -> dict[int, float]:
    """By row how much a token counts, as TRL's `loss_type` says; masked rows are not there."""
    scored = [r for group in usable for r in group.rollouts if r.reward is not None]
    kept = [r for r in scored if not (args.mask_truncated_completions and r.cut)]
    found = {}
    for group in usable:
        count = sum(rollout.reward is not None for rollout in group.rollouts)
        for rollout in group.rollouts:
            if not any(rollout is one for one in kept):
                continue
            found[rollout.row] = {
                "grpo": 1.0 / (len(usable) * count * len(rollout.response)),
                "dapo": 1.0 / sum(len(one.response) for one in kept),
                "cispo": 1.0 / sum(len(one.response) for one in kept),
                "dr_grpo": 1.0 / (len(scored) * longest),
            }[args.loss_type]
    return found


def objective(
    model: Any,
    reference: Any,
    groups: list[Group],
    args: Any,
    longest: int,
    treated: Collection[str],
    lots: list[float],
    part: Collection[int] | None = None,
    parts: int = 1,
) -> dict[str, Any]:
    """METHOD 8, literally, or one of its variants; leaves the gradient in the model's parameters.

    `lots` are the draws that thin small advantages, one a row. `part` names the rows of one of
    `parts` mini-batches; without it they are all of them.
    """
    model.zero_grad()
    temperature, beta = args.temperature, args.beta
    alone = args.curriculum_config().advantage.shape_alone
    below = args.curriculum_config().advantage.thin_below
    found = [(group, advantages(group, treated, alone)) for group in groups]
    found = [(group, values) for group, values in found if any(v is not None for v in values)]
    usable = [group for group, _ in found]
    weight_of = weights(usable, args, longest)
    squares = [value**2 for _, values in found for value in values if value]
    small = below * math.sqrt(sum(squares) / max(1, len(squares)))
    loss = clipped = kl = mass = 0.0
    thinned = 0
    ratios: list[float] = []
    for group, values in found:
        low, high = CLIP[tier(group.difficulty, treated)]
        for rollout, advantage in zip(group.rollouts, values, strict=True):
            if advantage is None or rollout.row not in weight_of:
                continue
            if abs(advantage) < small:
                lost = lots[rollout.row] * small >= abs(advantage)
                thinned += lost and advantage != 0.0
                advantage = 0.0 if lost else math.copysign(small, advantage)
            weight = parts * weight_of[rollout.row]
            mass += weight * len(rollout.response) / parts
            if part is not None and rollout.row not in part:
                continue
            now = logprobs(model, rollout.trained, rollout.response, temperature)
            distance = now - torch.tensor(rollout.behaviour, dtype=now.dtype)
            if args.importance_sampling_level == "sequence":
                distance = torch.stack([distance.mean()] * len(distance))
            ratio = torch.exp(distance)
            if args.loss_type == "cispo":
                most = torch.full_like(ratio, 1.0 + high)
                term = (torch.where(ratio > most, most, ratio).detach() * advantage * now).sum()
                clipped += weight * int((ratio > most).sum())
            else:
                bounded = torch.clamp(ratio, 1.0 - low, 1.0 + high)
                term = torch.minimum(ratio * advantage, bounded * advantage).sum()
                clipped += weight * int((bounded * advantage < ratio * advantage).sum())
            ratios += ratio.tolist()
            if beta > 0:
                with torch.no_grad():
                    before = logprobs(reference, rollout.trained, rollout.response, temperature)
                gap = before - now
                divergence = torch.exp(gap) - gap - 1.0
                term = term - beta * divergence.sum()
                kl += weight * divergence.sum().item()
            (-weight * term).backward()
            loss -= weight * term.item()
    gradient = {
        name: torch.zeros_like(value) if value.grad is None else value.grad.clone()
        for name, value in model.named_parameters()
    }
    shares = {"clipped": clipped / mass, "kl": kl / mass}
    return {"loss": loss, "gradient": gradient, "ratios": ratios, "thinned": thinned, **shares}


class Witness(TrainerCallback):
    """Watches a trainer, and at every step sets the reference beside the gradient it made.

    Without `check` it only keeps the gradients and what was selected, which is much faster.
    """

    def __init__(self, check: bool = True) -> None:
        self.check = check
        self.trainer: Any = None
        self.steps: list[Step] = []
        self._groups: list[Group] = []
        self._parts: list[set[int]] = []
        self._lots: list[float] = []
        self._selection: list[tuple[str, float, int]] = []
        self._sampled: dict[tuple[int, ...], tuple[Any, list[int]]] = {}

    def attach(self, trainer: Any) -> None:
        """Look over the shoulder of the trainer's collector."""
        self.trainer = trainer
        self._start = copy.deepcopy(trainer.model).double()
        collect = trainer.collector.rollouts

        def watched(plan: Any, *rest: Any) -> Any:
            before = self._replayed(plan) if plan.train and self.check else []
            rollouts = collect(plan, *rest)
            self._note(plan, rollouts, before)
            return rollouts

        trainer.collector.rollouts = watched
        make, size = trainer._micro_batches, trainer.args.gradient_accumulation_steps

        def dealt(*given: Any) -> Any:
            """Which rows each update reads, on all processes: drawn, so not to be recomputed."""
            ticks = make(*given)
            rows = [[] if tick is None else tick["rows"].tolist() for tick in ticks]
            cuts = range(0, len(rows), size)
            mine = [[row for tick in rows[cut : cut + size] for row in tick] for cut in cuts]
            everyone = gather_object([mine])
            self._parts = [{r for mine in everyone for r in mine[at]} for at in range(len(mine))]
            return ticks

        trainer._micro_batches = dealt

    def _shown(self, row: int, conditioning: int, fragments: list[str]) -> list[int]:
        text = self.trainer.store.records[row]["prompt"]
        if conditioning == HINTED:
            text = load_template("math").hinted(text, fragments)
        elif conditioning == THINK:
            text = load_template("math").longer(text)
        shown = tiny.encode(text).tolist()
        if conditioning != PLAIN and len(shown) >= self._bare().config.max_position_embeddings:
            return self._shown(row, PLAIN, [])  # help that does not fit is not given
        return shown

    def _note(self, plan: Any, rollouts: Any, replayed: list[Group]) -> None:
        """Group the rollouts by prompt; their behaviour is that of the weights of now."""
        if plan.train:
            sizes = plan.group_size_P.tolist()
            self._selection = list(zip(plan.ids, plan.difficulty_P.tolist(), sizes, strict=True))
        if not self.check:
            return
        model = self._now()
        places = {int(row): place for place, row in enumerate(plan.prompt_P)}
        groups = {row: Group(float(plan.difficulty_P[p])) for row, p in places.items()}
        for index, row in enumerate(rollouts.prompt_R.tolist()):
            response = rollouts.tokens[rollouts.offsets[index] : rollouts.offsets[index + 1]]
            reward = float(rollouts.reward_R[index])
            kind = int(rollouts.conditioning_R[index])
            shown = self._shown(row, kind, plan.hints[places[row]])
            key = self._key(plan.step, row, kind, response.tolist())
            self._sampled[key] = model, shown
            if not plan.train:
                continue  # probes are only worth the time where they are trained on later
            as_sampled = kind != PLAIN and self.trainer.args.hint_conditioning == "hinted"
            rollout = Rollout(
                response.tolist(),
                None if math.isnan(reward) else reward,
                kind,
                shown,
                shown if as_sampled else self._shown(row, PLAIN, []),
                self._behaviour(key, response.tolist()),
                int(rollouts.finish_R[index]) == CUT,
                index,
            )
            groups[row].rollouts.append(rollout)
        if plan.train:
            old = [rollout for group in replayed for rollout in group.rollouts]
            for place, rollout in enumerate(old):
                rollout.row = len(rollouts) + place
            self._groups = [*groups.values(), *replayed]
            lots = keyed_rng(self.trainer.settings.seed, plan.step, "thin")
            self._lots = lots.random(len(rollouts) + len(old)).tolist()

    def _behaviour(self, key: tuple[int, ...], response: list[int]) -> list[float]:
        """Log-probs under the weights and the prompt that a response was sampled from."""
        model, shown = self._sampled[key]
        with torch.no_grad():
            found = logprobs(model, shown, response, self.trainer.args.temperature)
        return [float(value) for value in found.tolist()]

    def _replayed(self, plan: Any) -> list[Group]:
        """Groups of the buffer, with the behaviour of the weights that sampled them."""
        curriculum = self.trainer.curriculum
        buffer, difficulty = curriculum.buffer, curriculum.difficulty()
        groups = []
        for name in plan.replay.tolist():
            members = [i for i, group in enumerate(buffer["group"].tolist()) if group == name]
            row = int(buffer["prompt"][members[0]])
            group = Group(float(difficulty[row]), replayed=True)
            for member in members:
                response = buffer.batch([member]).tokens.tolist()
                kind = int(buffer["conditioning"][member])
                key = self._key(int(buffer["step"][member]), row, kind, response)
                plain = self._shown(row, PLAIN, [])
                reward = float(buffer["reward"][member])
                behaviour, cut = self._behaviour(key, response), buffer["finish"][member] == CUT
                group.rollouts.append(Rollout(response, reward, kind, plain, plain, behaviour, cut))
            groups.append(group)
        return groups

    @staticmethod
    def _key(step: int, row: int, kind: int, response: list[int]) -> tuple[int, ...]:
        return (step, row, kind, *response)

    def _bare(self) -> Any:
        return self.trainer.accelerator.unwrap_model(self.trainer.model)

    def _now(self) -> Any:
        """A copy of the policy as it is, whole."""
        model = copy.deepcopy(self._start).eval()
        model.load_state_dict(whole_weights(self._bare()))
        return model

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """DeepSpeed steps in its own backward pass, before Trainer says that it is about to."""
        if not self.trainer.is_deepspeed_enabled:
            return
        from deepspeed.utils import safe_get_full_grad

        engine = self.trainer.model_wrapped
        step = engine.step

        def watched() -> None:
            self._see(args, safe_get_full_grad)
            step()

        engine.step = watched

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The gradient is complete, the weights are still those it belongs to."""
        if not self.trainer.is_deepspeed_enabled:
            self._see(args, lambda parameter: whole(parameter.grad))

    def _see(self, args: Any, gradient_of: Any) -> None:
        trained = [(n, p) for n, p in self._bare().named_parameters() if p.requires_grad]
        gradient = {name: gradient_of(one).detach().clone() for name, one in trained}
        if not self.check:
            nan = math.nan
            self.steps.append(Step(nan, nan, nan, {}, gradient, [], [], self._selection))
            return
        model = self._now()
        settings = self.trainer.settings
        uses = {"easy": settings.easy.use, "hard": settings.hard.use}
        treated = [name for name, use in uses.items() if use and settings.tiers]
        parts, longest = 1, settings.max_tokens
        if args.steps_per_generation:
            parts = args.steps_per_generation // args.gradient_accumulation_steps
        part = self._parts.pop(0) if parts > 1 else None
        found = objective(
            model, self._start, self._groups, args, longest, treated, self._lots, part, parts
        )
        self.steps.append(
            Step(
                found["loss"],
                found["clipped"],
                found["kl"],
                found["gradient"],
                gradient,
                self._groups,
                found["ratios"],
                self._selection,
                found["thinned"],
            )
        )
