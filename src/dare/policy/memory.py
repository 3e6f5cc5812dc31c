"""How much memory will a step need? Arithmetic on a model's shape; nothing is loaded.

Memory is counted at the moments of a step at which it can peak. Each constant of the count is
below, with its reason; a measurement on a GPU that disagrees changes one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from dare.policy.workload import Workload

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

SAVED = {"mixed": (22, 4, 4, 8), "half": (16, 4, 4, 8), "float": (20, 8, 8, 16)}
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
"""Numbers a logit of the tokens being sampled, as `dare_decoder.paged.fit` sets them aside."""
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
        return next((one for one in self.worst_moments() if one.phase == phase), None)

    def worst_moments(self) -> list[Moment]:
        """One of each phase, in their order in a step."""
        phases = dict.fromkeys(moment.phase for moment in self.moments)
        each = ([one for one in self.moments if one.phase == phase] for phase in phases)
        return [max(some, key=lambda moment: moment.total) for some in each]

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
    return MemoryPlan(workload, (*moments, *_train(workload)), waiting)


def _moment(workload: Workload, phase: str, name: str, parts: Mapping[str, float]) -> Moment:
    """With what stays on the device all the time; parts of nothing are left out."""
    shape, optim = workload.shape, workload.optim
    each = OPTIMISER_STATES.get(optim, 2.0) * shape.trained_bytes
    # Adapters are switched off to get the reference; a whole model is copied.
    copied = workload.beta > 0 and not shape.adapters
    found = {
        "weights": float(shape.weight_bytes),
        "reference copy": float(shape.weight_bytes if copied else 0),
        "optimiser": OPTIMISER_BYTES[optim] * shape.trained if optim in OPTIMISER_BYTES else each,
        # DDP sends gradients in flat copies that it keeps.
        "gradient buckets": float(shape.trained_bytes if workload.processes > 1 else 0),
        **parts,
    }
    return Moment(phase, name, {part: found[part] for part in PARTS if found.get(part)})


def _generate(workload: Workload, limit: float | None) -> tuple[Moment, int]:
    """With pages for every row's whole budget, or for as many as fit; and how many rows do not.

    Gradients are freed by then, and a group shares the pages of its prompt.
    """
    shape, rows, computed = workload.shape, workload.rows, workload.computed
    page = PAGE * 2 * shape.layers * shape.key_value_heads * shape.head_dim * computed
    row = -(-workload.max_completion_length // PAGE) * page
    prompt = -(-workload.prompt_tokens // PAGE) * page
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


def _score(workload: Workload) -> Moment:
    """One pass over a batch of responses, without gradients."""
    shape = workload.shape
    sequence = workload.prompt_tokens + workload.response_tokens
    every = -(-workload.rollout_budget // workload.processes) * sequence
    tokens = max(sequence, min(workload.score_batch_tokens, every))
    hidden, wide = FORWARD[workload.precision]
    # Autocast keeps 16-bit copies of trained matrices until a pass ends.
    casts = workload.precision == "mixed" and not shape.adapters
    parts = {
        "16-bit weight casts": float(HALF * shape.matrix_parameters if casts else 0),
        "activations at work": tokens * (hidden * shape.hidden + wide * shape.intermediate),
        "logits": _logits(workload, tokens * workload.response_tokens / sequence),
    }
    return _moment(workload, "score", "a pass over score_batch_tokens", parts)


def _train(workload: Workload) -> list[Moment]:
    """The end of the forward pass, two of the backward pass, and the optimiser's step."""
    shape, precision = workload.shape, workload.precision
    checkpointing, mixed = workload.gradient_checkpointing, precision == "mixed"
    tokens, gradients = workload.micro_batch_tokens, shape.trained_bytes
    kept = {"gradients": gradients, "activations kept": _kept(workload)}
    # Without checkpointing the backward pass holds the casts of every layer, frozen ones too. With
    # it they are gone when a layer has been read: the trainer has autocast keep none.
    casts = float(HALF * shape.matrix_parameters if mixed and not checkpointing else 0)
    # The head has its own, while its chunks are computed.
    head_cast = float(HALF * shape.vocabulary * shape.hidden if mixed else 0)
    responses = workload.per_device_train_batch_size * workload.response_tokens
    logits = _logits(workload, responses)
    at_head = {**kept, "16-bit weight casts": max(casts, head_cast), "logits": logits}
    head = 0 if shape.adapters else shape.vocabulary * shape.hidden * FLOAT * HEAD_GRADIENTS
    slopes = responses * shape.hidden * HEAD_ROWS + head

    hidden, wide = BACKWARD[precision]
    work = tokens * (hidden * shape.hidden + wide * shape.intermediate)
    work += shape.hidden * shape.intermediate * WEIGHT_GRADIENT[precision]
    if checkpointing:  # the layer is read again
        work += tokens * _saved(workload)
        casts = HALF * shape.matrix_parameters / shape.layers if mixed else casts
    at_layer = {**kept, "16-bit weight casts": casts, "activations at work": work}
    extra = gradients if workload.optim in UNFUSED else 0

    moments: dict[str, Mapping[str, float]] = {
        "the end of the forward pass": at_head,
        # All layers still wait with what they kept.
        "the backward pass through the head": {**at_head, "logits": logits + slopes},
        # The last one; the others still wait.
        "the backward pass through a layer": at_layer,
        # Activations are gone.
        "the optimiser's update": {"gradients": gradients, "activations at work": extra},
    }
    return [_moment(workload, "train", name, parts) for name, parts in moments.items()]


def _saved(workload: Workload) -> float:
    """Bytes a token that one layer keeps for its backward pass, its input left out."""
    shape = workload.shape
    widths = (shape.hidden, shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim)
    every = zip(SAVED[workload.precision], (*widths, shape.intermediate), strict=True)
    return sum(size * width for size, width in every)


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


def _logits(workload: Workload, tokens: float) -> float:
    """Of so many response tokens: a chunk of them in the dtype of products, or all at once."""
    logits = tokens * workload.shape.vocabulary
    if workload.shape.plain_head:
        return min(CHUNK, logits) * workload.computed
    return logits * WHOLE_LOGITS[workload.precision]
