"""How much memory will a step need? Arithmetic on a model's shape; nothing is loaded.

Memory is counted at the moments of a step at which it can peak. Each constant of the count is
below, with its reason; a measurement on a GPU that disagrees changes one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from dare.policy.shape import ModelShape

GB = 1e9

CUDA_CONTEXT = 0.5 * GB
"""Kernels and libraries of CUDA itself, outside torch's allocator and of its statistics."""
HEADROOM = 0.06
"""Share of a card that fragments of the allocator and other programs keep from us."""

HALF = 2
"""Bytes of a 16-bit number: what mixed precision computes in."""
FLOAT = 4
"""Bytes of a float32 number."""

OPTIMISER_STATES = {
    "adamw_torch": 2.0,
    "adamw_torch_fused": 2.0,
    "adagrad": 1.0,
    "rmsprop": 1.0,
    "sgd": 0.0,
    "adafactor": 0.0,
}
"""Numbers an optimiser keeps for each trained one, in the type of the weights: AdamW two moments,
Adafactor sums of rows and columns only. One that is not listed is counted as AdamW."""
OPTIMISER_BYTES = {"adamw_8bit": 2.0, "adamw_bnb_8bit": 2.0, "adamw_torch_8bit": 2.0}
"""Of the 8-bit ones: two moments of a byte each."""
UNFUSED = ("adamw_torch",)
"""Optimisers that hold one more number of every trained one while they update."""

SAVED = {
    "mixed": (22, 4, 4, 8),
    "half": (16, 4, 4, 8),
    "float": (20, 8, 8, 16),
}
"""Bytes a token that a Llama-like layer keeps for its backward pass, beside its input, for each
of hidden size, all query heads, all key heads and the feed-forward width.

                     mixed   half    float
two norms: input     0 + 4   4 + 4   0 + 4   float32 copies; the second one's input is the sum
  normalised         4 + 4   2 + 2   4 + 4
  for the matrices   6 + 4   2 + 2   4 + 4   mixed: a 16-bit copy for each of q k v, gate and up
query and output     2 x 2   2 x 2   4 x 2   of the attention, the query after its rotation
key and value        2 x 2   2 x 2   4 x 2   one set for the heads that share it
gate, its activation, up, product: 4 numbers of the feed-forward width each

A test counts what autograd really saves, within 5 %.
"""
BACKWARD = {"mixed": (12, 6), "half": (6, 6), "float": (12, 12)}
"""Bytes a token, of hidden size and feed-forward width, of the gradients inside a layer that are
alive at once: of the residual stream and a norm, and of gate, up and product."""
WEIGHT_GRADIENT = {"mixed": 6, "half": 2, "float": 4}
"""Bytes a weight of one matrix whose gradient is being added: 16 bits, then the weights' type."""
FORWARD = {"mixed": (12, 6), "half": (8, 6), "float": (12, 12)}
"""Bytes a token of a layer that is only read (scoring): the residual stream, a norm's output and
its copy; the activation, up and their product."""
EXTRA_STATES = 2
"""Hidden states kept beside one a layer: after the last layer and after the last norm."""

CHUNK = 1 << 27
"""Logits that are held at a time on a GPU, 64 x `dare.policy.logprobs._CHUNK_ELEMENTS`: once, in
the dtype of products; the kernels write nothing else of their size."""
HEAD_GRADIENTS = 1
"""float32 matrices [V, H]: the sum of the head's gradient; products are added to it in place."""
HEAD_ROWS = 8
"""Bytes of hidden size for each response token: its float32 state at the head and the gradient."""
WHOLE_LOGITS = {"mixed": 12, "half": 6, "float": 12}
"""Bytes a logit where all of a batch exist at once: made, changed after the head, and a gradient;
mixed precision hands them on in float32."""
SAMPLER = 3
"""Numbers a logit of the tokens being sampled, as `dare.policy.paged.fit` sets them aside."""
PAGE = 64
"""Tokens of a page of the decoder's cache; the last one of a row is half empty in the mean."""
CACHE_SHARE = 0.85
"""Of the memory that is free, the share that the decoder takes at the most ..."""
CACHE_SPARE = 2**29
"""... less what the prompts' own pass needs. Rollouts that its pages do not hold wait."""

PARTS = (
    "weights",
    "reference copy",
    "optimiser",
    "gradients",
    "gradient buckets",
    "16-bit weight casts",
    "decoder's weight copy",
    "key-value cache",
    "activations kept",
    "activations at work",
    "logits",
)
"""Every part there is, in the order of the table."""
PHASES = ("generate", "score", "train")


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
        if self.shape.weight_size <= HALF:
            return "half"
        return "mixed" if self.mixed_precision else "float"

    @property
    def computed(self) -> int:
        """Bytes of a number that products are made with: the decoder's weights and cache."""
        return FLOAT if self.precision == "float" else HALF

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


@dataclass(frozen=True)
class Moment:
    """What is alive at one moment, in bytes by part."""

    phase: str
    name: str
    parts: Mapping[str, float]

    @cached_property
    def total(self) -> float:
        """All parts together."""
        return sum(self.parts.values())

    @property
    def largest(self) -> str:
        """The part that takes most."""
        return max(self.parts, key=lambda part: self.parts[part])


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of one device at every moment of a step at which it can peak."""

    workload: Workload
    moments: tuple[Moment, ...]
    waiting: int = 0
    """Rows that the decoder's cache does not hold where all run to their limit: they wait."""

    @cached_property
    def peak(self) -> Moment:
        """The moment that needs most."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def peak_gb(self) -> float:
        """Peak of torch's allocator in GB, to compare with `torch.cuda.max_memory_allocated`."""
        return self.peak.total / GB

    @property
    def needed_gb(self) -> float:
        """That and what CUDA takes for itself."""
        return (self.peak.total + CUDA_CONTEXT) / GB

    def worst(self, phase: str) -> Moment | None:
        """The moment of a phase that needs most; None where the phase does not happen."""
        found = [moment for moment in self.moments if moment.phase == phase]
        return max(found, key=lambda moment: moment.total, default=None)

    def worst_moments(self) -> list[Moment]:
        """One of each phase, in their order in a step."""
        found = [self.worst(phase) for phase in PHASES]
        return [moment for moment in found if moment is not None]

    def excess(self, limit: float) -> float:
        """Bytes over the limit, added up over the phases: what is left to be saved."""
        return sum(max(0.0, moment.total - limit) for moment in self.worst_moments())


def usable(card: float) -> float:
    """Bytes that torch's allocator can have of a card with so many."""
    return card * (1 - HEADROOM) - CUDA_CONTEXT


def plan_memory(workload: Workload, limit: float | None = None) -> MemoryPlan:
    """Parts at every moment; see the constants for the reasons.

    `limit` is what torch's allocator can have (`usable`): the paged decoder takes no more cache
    than that leaves it.
    """
    generate, waiting = _generate(workload, limit)
    moments = [generate]
    if workload.scores or workload.beta > 0:
        moments.append(_score(workload))
    moments += [
        _after_forward(workload),
        _head_backward(workload),
        _layer_backward(workload),
        _update(workload),
    ]
    return MemoryPlan(workload, tuple(moments), waiting)


def _moment(workload: Workload, phase: str, name: str, parts: Mapping[str, float]) -> Moment:
    """With what stays on the device all the time; parts of nothing are left out."""
    shape = workload.shape
    found = {
        "weights": float(shape.weight_bytes),
        "reference copy": float(_reference(workload)),
        "optimiser": _optimiser(workload),
        # DDP sends gradients in flat copies that it keeps.
        "gradient buckets": float(shape.trained_bytes if workload.processes > 1 else 0),
        **parts,
    }
    return Moment(phase, name, {part: found[part] for part in PARTS if found.get(part)})


def _reference(workload: Workload) -> int:
    """Adapters are switched off to get the reference; a whole model is copied."""
    copied = workload.beta > 0 and not workload.shape.adapters
    return workload.shape.weight_bytes if copied else 0


def _optimiser(workload: Workload) -> float:
    if workload.optim in OPTIMISER_BYTES:
        return OPTIMISER_BYTES[workload.optim] * workload.shape.trained
    return OPTIMISER_STATES.get(workload.optim, 2.0) * workload.shape.trained_bytes


def _generate(workload: Workload, limit: float | None) -> tuple[Moment, int]:
    """With pages for every row's whole budget, or for as many as fit; and how many rows do not.

    Gradients are freed by then, and a group shares the pages of its prompt.
    """
    shape, rows, computed = workload.shape, workload.rows, workload.computed
    page = PAGE * 2 * shape.layers * shape.key_value_heads * shape.head_dim * computed
    row = _pages(workload.max_completion_length) * page
    prompt = _pages(workload.prompt_tokens) * page
    logits = rows * shape.vocabulary * SAMPLER * computed
    # Each process does every n-th rollout of the step, of nearly all of its prompts.
    mine = -(-workload.rollout_budget // workload.processes)
    prompts = max(
        -(-rows // workload.group_size),
        min(mine, -(-workload.rollout_budget // workload.group_size)),
    )
    cache = float(rows * row + prompts * prompt)
    copy = computed * shape.matrix_parameters if shape.paged else 0

    def moment(cache: float) -> Moment:
        parts = {"decoder's weight copy": copy, "key-value cache": cache, "logits": logits}
        return _moment(workload, "generate", "the decoder with its cache", parts)

    if limit is None or not shape.paged:
        return moment(cache), 0
    free = limit - moment(0.0).total
    held = min(cache, max(float(row + prompt), CACHE_SHARE * free - CACHE_SPARE))
    return moment(held), rows - int(rows * held / cache)


def _pages(tokens: float) -> float:
    """Pages that so many tokens fill; of a budget or a mean length."""
    return -(-tokens // PAGE)


def _score(workload: Workload) -> Moment:
    """One pass over a batch of responses, without gradients."""
    shape = workload.shape
    sequence = workload.prompt_tokens + workload.response_tokens
    every = -(-workload.rollout_budget // workload.processes) * sequence
    tokens = max(sequence, min(workload.score_batch_tokens, every))
    responses = tokens * workload.response_tokens / sequence
    hidden, wide = FORWARD[workload.precision]
    if shape.plain_head:
        logits = min(CHUNK, responses * shape.vocabulary) * _product(workload)
    else:
        logits = responses * shape.vocabulary * WHOLE_LOGITS[workload.precision]
    return _moment(
        workload,
        "score",
        "a pass over score_batch_tokens",
        {
            "16-bit weight casts": _cached_casts(workload),
            "activations at work": tokens * (hidden * shape.hidden + wide * shape.intermediate),
            "logits": logits,
        },
    )


def _after_forward(workload: Workload) -> Moment:
    """At the head, before the backward pass."""
    casts = max(_saved_casts(workload), _head_cast(workload))
    return _moment(
        workload,
        "train",
        "the end of the forward pass",
        {
            "gradients": workload.shape.trained_bytes,
            "16-bit weight casts": casts,
            "activations kept": _kept(workload),
            "logits": _train_logits(workload),
        },
    )


def _head_backward(workload: Workload) -> Moment:
    """Through the head: all layers still wait with what they kept."""
    shape = workload.shape
    responses = workload.per_device_train_batch_size * workload.response_tokens
    rows = responses * shape.hidden * HEAD_ROWS
    head = 0 if shape.adapters else shape.vocabulary * shape.hidden * FLOAT * HEAD_GRADIENTS
    return _moment(
        workload,
        "train",
        "the backward pass through the head",
        {
            "gradients": shape.trained_bytes,
            "16-bit weight casts": max(_saved_casts(workload), _head_cast(workload)),
            "activations kept": _kept(workload),
            "logits": _train_logits(workload) + rows + head,
        },
    )


def _layer_backward(workload: Workload) -> Moment:
    """Through the last layer, the others still waiting; with checkpointing it is read again."""
    shape, precision = workload.shape, workload.precision
    hidden, wide = BACKWARD[precision]
    tokens = workload.micro_batch_tokens
    work = tokens * (hidden * shape.hidden + wide * shape.intermediate)
    work += shape.hidden * shape.intermediate * WEIGHT_GRADIENT[precision]
    casts = _saved_casts(workload)
    if workload.gradient_checkpointing:
        work += tokens * _saved(workload)
        if precision == "mixed":
            casts = HALF * shape.matrix_parameters / shape.layers
    return _moment(
        workload,
        "train",
        "the backward pass through a layer",
        {
            "gradients": shape.trained_bytes,
            "16-bit weight casts": casts,
            "activations kept": _kept(workload),
            "activations at work": work,
        },
    )


def _update(workload: Workload) -> Moment:
    """The optimiser's step: activations are gone."""
    extra = workload.shape.trained_bytes if workload.optim in UNFUSED else 0
    return _moment(
        workload,
        "train",
        "the optimiser's update",
        {
            "gradients": workload.shape.trained_bytes,
            "activations at work": extra,
        },
    )


def _saved(workload: Workload) -> float:
    """Bytes a token that one layer keeps for its backward pass, its input left out."""
    shape = workload.shape
    hidden, query, key, wide = SAVED[workload.precision]
    return (
        hidden * shape.hidden
        + query * shape.heads * shape.head_dim
        + key * shape.key_value_heads * shape.head_dim
        + wide * shape.intermediate
    )


def _kept(workload: Workload) -> float:
    """Between the two passes: every layer's input or, without checkpointing, all it saved.

    Of 16-bit layers that saved all, the first norm's float32 copy stands for the input.
    """
    shape, half = workload.shape, workload.precision == "half"
    checkpointing = workload.gradient_checkpointing
    inputs = 0 if half and not checkpointing else shape.layers
    states = (inputs + EXTRA_STATES) * shape.hidden * (HALF if half else FLOAT)
    saved = 0.0 if checkpointing else shape.layers * _saved(workload)
    return workload.micro_batch_tokens * (states + saved)


def _cached_casts(workload: Workload) -> float:
    """While scoring, autocast keeps 16-bit copies of trained matrices until a pass ends."""
    casts = workload.precision == "mixed" and not workload.shape.adapters
    return float(HALF * workload.shape.matrix_parameters if casts else 0)


def _saved_casts(workload: Workload) -> float:
    """Without checkpointing the backward pass holds those of every layer, frozen ones too.

    With it they are gone when a layer has been read: the trainer has autocast keep none.
    """
    held = workload.precision == "mixed" and not workload.gradient_checkpointing
    return float(HALF * workload.shape.matrix_parameters if held else 0)


def _head_cast(workload: Workload) -> float:
    """The head's own copy, while its chunks are computed."""
    head = workload.shape.vocabulary * workload.shape.hidden
    return float(HALF * head if workload.precision == "mixed" else 0)


def _product(workload: Workload) -> int:
    """Bytes of a number that a matrix product gives."""
    return FLOAT if workload.precision == "float" else HALF


def _train_logits(workload: Workload) -> float:
    shape = workload.shape
    logits = workload.per_device_train_batch_size * workload.response_tokens * shape.vocabulary
    if shape.plain_head:
        return min(CHUNK, logits) * _product(workload)
    return logits * WHOLE_LOGITS[workload.precision]
