"""Triton kernels over rows of logits: normaliser, slope, nucleus. Torch has them in many passes.

A row of 150,000 logits is read in 16 bits and summed in float32; nothing of its size is written but
the slope, which takes its place. What a row gives depends on that row alone.
"""

import torch
import triton
import triton.language as tl

SEARCH = 8  # thresholds tried in one pass over a row
BLOCK = 4096  # logits a program looks at together
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def order_key(x):
    """An integer that orders as the float32 does (the two zeros aside)."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _edge(
    logits, vocabulary, low, high, share, whole, top, slope,
    COUNT: tl.constexpr, SHIFT: tl.constexpr, W: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """(t, weight, all): the largest key t in [low, high] whose tokens, those with a key of t or
    more, weigh at least `share` of all; their weight; and the weight of all tokens.

    A token weighs exp2((x - top) slope), or 1 with COUNT, where `share` is their number and not a
    share. Keys below `low` are known not to be it. `whole` is 0 where all means all tokens. Each
    pass tries W keys, so that a range of n takes log n / log W passes.
    """
    lane = tl.arange(0, W).to(tl.int64)
    low, high = low.to(tl.int64), high.to(tl.int64)  # a range of float32 keys exceeds 32 bits
    inside = 0.0
    every = 0.0
    passes = 0
    while ((high > low) | (passes == 0)) & (passes < 64):  # NaN must not keep a GPU busy for ever
        passes += 1
        step = tl.maximum((high - low + W) // W, 1)
        tries = tl.minimum(low + lane * step, high + 1).to(tl.int32)
        held = tl.zeros([W, B], tl.float32)
        rest = tl.zeros([B], tl.float32)
        for start in range(0, vocabulary, B):
            place = start + tl.arange(0, B)
            x = tl.load(logits + place, mask=place < vocabulary, other=-float("inf")).to(tl.float32)
            key = order_key(x) >> SHIFT
            if COUNT:
                weight = tl.where(place < vocabulary, 1.0, 0.0)
            else:
                weight = tl.exp2((x - top) * slope)
            rest += weight
            held += tl.where(key[None, :] >= tries[:, None], weight[None, :], 0.0)
        sums = tl.sum(held, 1)
        every = tl.sum(rest, 0)
        if COUNT:
            goal = share
        else:
            goal = share * tl.where(whole > 0.0, whole, every)
        # The first of the tries is `low` itself, which holds enough whatever rounding says.
        enough = ((sums >= goal) & (tries <= high)) | (lane == 0)
        taken = tl.sum(enough.to(tl.int64), 0) - 1
        inside = tl.sum(tl.where(lane == taken, sums, 0.0), 0)
        low = low + taken * step
        high = tl.minimum(high, low + step - 1)
    return low.to(tl.int32), inside, every


@triton.jit
def nucleus(
    logits, vocabulary, top, heat, top_p, top_k,
    NUCLEUS: tl.constexpr, SHIFT: tl.constexpr, W: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """(smallest key inside, weight inside, weight of all tokens) of the set sampled from."""
    slope = _LOG2E / heat
    high = order_key(top) >> SHIFT
    low = order_key(top * 0.0 - float("inf")) >> SHIFT
    whole = 0.0
    if top_k > 0 and top_k < vocabulary:
        low, _, _ = _edge(logits, vocabulary, low, high, top_k, 0.0, top, slope, True, SHIFT, W, B)
        _, whole, _ = _edge(logits, vocabulary, low, low, 1.0, 0.0, top, slope, False, SHIFT, W, B)
    if NUCLEUS:
        # All tokens this far below the first weigh less than 1 - top_p together: the edge is
        # above, which spares a pass or two.
        far = top - heat * tl.log(vocabulary / tl.maximum(1.0 - top_p, 1e-7))
        low = tl.maximum(low, (order_key(far) >> SHIFT) - 1)
        share = top_p
    else:
        high = low
        share = 0.0
    return _edge(logits, vocabulary, low, high, share, whole, top, slope, False, SHIFT, W, B)


@triton.jit
def top_of(logits, vocabulary, B: tl.constexpr):
    """The largest logit of a row."""
    best = tl.full([B], -float("inf"), tl.float32)
    for start in range(0, vocabulary, B):
        place = start + tl.arange(0, B)
        x = tl.load(logits + place, mask=place < vocabulary, other=-float("inf")).to(tl.float32)
        best = tl.maximum(best, x)
    return tl.max(best, 0)


@triton.jit
def _normaliser_kernel(
    logits, targets, normaliser, chosen, ahead, vocabulary, heat, AHEAD: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    mine = logits + row * vocabulary
    slope = _LOG2E / heat
    top = top_of(mine, vocabulary, B)
    at = tl.load(mine + tl.load(targets + row)).to(tl.float32)
    every = tl.zeros([B], tl.float32)
    before = tl.zeros([B], tl.float32)
    for start in range(0, vocabulary, B):
        place = start + tl.arange(0, B)
        x = tl.load(mine + place, mask=place < vocabulary, other=-float("inf")).to(tl.float32)
        weight = tl.exp2((x - top) * slope)
        every += weight
        if AHEAD:
            before += tl.where(x > at, weight, 0.0)
    total = tl.sum(every, 0)
    tl.store(normaliser + row, top / heat + tl.log(total))
    tl.store(chosen + row, at / heat)
    if AHEAD:
        tl.store(ahead + row, tl.sum(before, 0) / total)


def normalise(logits, targets, temperature, ahead=False):
    """(log of the normaliser, scaled logit of the target, probability ahead of it), each [N]."""
    made = torch.empty(3, len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        _normaliser_kernel[(len(logits),)](
            logits, targets, made[0], made[1], made[2], logits.shape[1], temperature,
            AHEAD=ahead, B=BLOCK, num_warps=8,
        )  # fmt: skip
    return made[0], made[1], made[2]


@triton.jit
def _slope_kernel(logits, targets, normaliser, grad, vocabulary, heat, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * B + tl.arange(0, B)
    inside = place < vocabulary
    mine = logits + row * vocabulary
    x = tl.load(mine + place, mask=inside, other=0.0).to(tl.float32)
    chance = tl.exp2((x / heat - tl.load(normaliser + row)) * _LOG2E)
    here = tl.where(place == tl.load(targets + row), 1.0, 0.0)
    slope = (here - chance) * tl.load(grad + row)
    tl.store(mine + place, slope.to(logits.dtype.element_ty), mask=inside)


def slope_(logits, targets, normaliser, grad, temperature):
    """The logits replaced by grad times d log softmax(logits / temperature)[target] / d scaled."""
    if len(logits):
        blocks = triton.cdiv(logits.shape[1], BLOCK)
        _slope_kernel[(len(logits), blocks)](
            logits, targets, normaliser, grad, logits.shape[1], temperature, B=BLOCK, num_warps=8
        )
    return logits


@triton.jit
def _log_mass_kernel(
    logits, out, vocabulary, heat, top_p, top_k,
    NUCLEUS: tl.constexpr, SHIFT: tl.constexpr, W: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    mine = logits + row * vocabulary
    top = top_of(mine, vocabulary, B)
    _, inside, every = nucleus(mine, vocabulary, top, heat, top_p, top_k, NUCLEUS, SHIFT, W, B)
    tl.store(out + row, tl.log(inside / every))


def nucleus_log_mass(logits, temperature, top_p, top_k=0):
    """log of the share of probability that top-k and nucleus keep, [N] in float32."""
    out = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        _log_mass_kernel[(len(logits),)](
            logits, out, logits.shape[1], temperature, top_p, top_k,
            NUCLEUS=top_p < 1.0, SHIFT=spare_bits(logits), W=SEARCH, B=BLOCK, num_warps=16,
        )  # fmt: skip
    return out


def spare_bits(logits):
    """Low bits that say nothing: those that a 16-bit number does not have."""
    return {torch.bfloat16: 16, torch.float16: 13}.get(logits.dtype, 0)
