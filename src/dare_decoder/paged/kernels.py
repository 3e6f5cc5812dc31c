"""The operations of a decoding step as Triton kernels; `plain` has the same ones in torch.

Sums are in float32 whatever the dtype of the weights. A row's result depends on that row alone.
"""

import torch
import triton
import triton.language as tl

from dare_decoder.logit_kernels import BLOCK, SEARCH, nucleus, order_key, spare_bits, top_of

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _add_norm_kernel(
    residual,
    delta,
    weight,
    out,
    width,
    eps,
    ADD: tl.constexpr,
    ROUND: tl.constexpr,
    B: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, B)
    inside = column < width
    place = row * width + column
    x = tl.load(residual + place, mask=inside, other=0.0)
    if ADD:
        # Rounded to the residual's dtype before it is normalised, as the model does it.
        x = (x.to(tl.float32) + tl.load(delta + place, mask=inside, other=0.0).to(tl.float32)).to(
            residual.dtype.element_ty
        )
        tl.store(residual + place, x, mask=inside)
    x = x.to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / width + eps)
    if ROUND:
        x = x.to(residual.dtype.element_ty).to(tl.float32)
    x = x * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, x.to(out.dtype.element_ty), mask=inside)


def add_norm(residual, delta, weight, eps, out):
    """residual += delta (where given), then its RMS norm times weight, into out."""
    rows, width = residual.shape
    _add_norm_kernel[(rows,)](
        residual,
        residual if delta is None else delta,
        weight,
        out,
        width,
        eps,
        ADD=delta is not None,
        ROUND=residual.dtype != torch.float32,
        B=triton.next_power_of_2(width),
        num_warps=8,
    )
    return out


@triton.jit
def _silu_mul_kernel(both, out, width, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * B + tl.arange(0, B)
    inside = column < width
    gate = tl.load(both + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + column, mask=inside, other=0.0)
    active = (gate / (1.0 + tl.exp(-gate))).to(up.dtype)
    tl.store(out + row * width + column, active * up, mask=inside)


def silu_mul(both, out):
    """silu(first half) times second half of each row."""
    rows, width = out.shape
    block = 1024
    _silu_mul_kernel[(rows, triton.cdiv(width, block))](both, out, width, B=block, num_warps=4)
    return out


@triton.jit
def _rotate_store_kernel(
    qkv, query, keys, values, cosine, sine, q_norm, k_norm, table, prefix, own, width_t, eps,
    heads, shared, NORM: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = tl.arange(0, HALF)
    inside = half < D // 2
    source = qkv + (row * (heads + 2 * shared) + head) * D
    first = tl.load(source + half, mask=inside, other=0.0)
    second = tl.load(source + D // 2 + half, mask=inside, other=0.0)
    kind = first.dtype
    before = tl.load(prefix + row)
    done = tl.load(own + row)
    page = tl.load(table + row * width_t + (before + PAGE - 1) // PAGE + done // PAGE).to(tl.int64)
    if head < heads + shared:
        a, b = first.to(tl.float32), second.to(tl.float32)
        if NORM:
            scale = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / D + eps)
            norm = q_norm
            if head >= heads:
                norm = k_norm
            a = (a * scale).to(kind).to(tl.float32)
            b = (b * scale).to(kind).to(tl.float32)
            a = a * tl.load(norm + half, mask=inside, other=0.0).to(tl.float32)
            b = b * tl.load(norm + D // 2 + half, mask=inside, other=0.0).to(tl.float32)
        angle = (before + done).to(tl.int64) * (D // 2) + half
        c = tl.load(cosine + angle, mask=inside, other=0.0)
        s = tl.load(sine + angle, mask=inside, other=0.0)
        first, second = (a * c - b * s).to(kind), (b * c + a * s).to(kind)
    if head < heads:
        into = query + (row * heads + head) * D
    elif head < heads + shared:
        into = keys + ((page * shared + head - heads) * PAGE + done % PAGE) * D
    else:
        into = values + ((page * shared + head - heads - shared) * PAGE + done % PAGE) * D
    tl.store(into + half, first, mask=inside)
    tl.store(into + D // 2 + half, second, mask=inside)


def rotate_store(qkv, query, keys, values, angles, norms, slots, eps):
    """Rotated queries into `query`; rotated keys, and values, into each row's pages."""
    rows, heads, depth = query.shape
    shared, page = keys.shape[1:3]
    cosine, sine = angles
    _rotate_store_kernel[(rows, heads + 2 * shared)](
        qkv, query, keys, values, cosine, sine, *(norms or (cosine, cosine)),
        slots.table, slots.prefix, slots.own, slots.table.shape[1], eps, heads, shared,
        NORM=norms is not None, PAGE=page, D=depth, HALF=triton.next_power_of_2(depth // 2),
        num_warps=1,
    )  # fmt: skip


@triton.jit
def _attend_kernel(
    query, keys, values, table, prefix, own, alive, out, high, total, width_t, scale, heads, shared,
    PAGE: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, BG: tl.constexpr,
    SPLITS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    member = tl.arange(0, BG)
    depth = tl.arange(0, BD)
    spot = tl.arange(0, PAGE)
    there = (member < G)[:, None] & (depth < D)[None, :]
    place = (row * heads + head * G + member)[:, None] * D + depth[None, :]
    q = tl.load(query + place, mask=there, other=0.0)
    before = tl.load(prefix + row)
    mine = tl.load(own + row) + 1  # the token of now is in the pages already
    going = tl.load(alive + row)
    front = (before + PAGE - 1) // PAGE
    pages = tl.where(going > 0, front + (mine + PAGE - 1) // PAGE, 0)
    best = tl.full([BG], -float("inf"), tl.float32)
    mass = tl.zeros([BG], tl.float32)
    acc = tl.zeros([BG, BD], tl.float32)
    each = (pages + SPLITS - 1) // SPLITS
    for i in range(split * each, tl.minimum(pages, (split + 1) * each)):
        page = tl.load(table + row * width_t + i).to(tl.int64)
        held = tl.where(i < front, before - i * PAGE, mine - (i - front) * PAGE)
        base = (page * shared + head) * PAGE
        cell = (base + spot)[:, None] * D + depth[None, :]
        real = (spot < held)[:, None] & (depth < D)[None, :]
        k = tl.load(keys + cell, mask=real, other=0.0)
        v = tl.load(values + cell, mask=real, other=0.0)
        if EXACT:
            score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        else:
            score = tl.dot(q, tl.trans(k)) * scale
        score = tl.where((spot < held)[None, :], score, -float("inf"))
        top = tl.maximum(best, tl.max(score, 1))
        fade = tl.exp(best - top)
        weight = tl.exp(score - top[:, None])
        mass = mass * fade + tl.sum(weight, 1)
        if EXACT:
            acc = acc * fade[:, None] + tl.dot(weight, v, input_precision="ieee")
        else:
            acc = acc * fade[:, None] + tl.dot(weight.to(v.dtype), v)
        best = top
    if SPLITS == 1:
        result = acc / tl.maximum(mass, 1e-30)[:, None]
        tl.store(out + place, result.to(out.dtype.element_ty), mask=there)
    else:
        part = (row * heads + head * G + member) * SPLITS + split
        tl.store(high + part, best, mask=member < G)
        tl.store(total + part, mass, mask=member < G)
        tl.store(out + part[:, None] * D + depth[None, :], acc, mask=there)


@triton.jit
def _join_kernel(parts, high, total, out, SPLITS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    one = tl.program_id(0).to(tl.int64)  # a row and a head
    depth = tl.arange(0, BD)
    top = -float("inf")
    for split in range(SPLITS):
        top = tl.maximum(top, tl.load(high + one * SPLITS + split))
    mass = 0.0
    acc = tl.zeros([BD], tl.float32)
    for split in range(SPLITS):
        here = one * SPLITS + split
        best = tl.load(high + here)
        fade = tl.where(best == -float("inf"), 0.0, tl.exp(best - top))
        mass += tl.load(total + here) * fade
        acc += tl.load(parts + here * D + depth, mask=depth < D, other=0.0) * fade
    result = acc / tl.maximum(mass, 1e-30)
    tl.store(out + one * D + depth, result.to(out.dtype.element_ty), mask=depth < D)


def attend(query, keys, values, slots, scale, out, scratch=None):
    """Attention of one token a row over its pages; `scratch` splits long rows over programs."""
    rows, heads, depth = query.shape
    shared, page = keys.shape[1:3]
    splits = 1 if scratch is None else scratch[1].shape[-1]
    group = heads // shared
    parts, high, total = (out, out, out) if scratch is None else scratch
    wide = max(16, triton.next_power_of_2(depth))  # the least a matrix unit takes
    _attend_kernel[(rows, shared, splits)](
        query, keys, values, slots.table, slots.prefix, slots.own, slots.alive, parts, high, total,
        slots.table.shape[1], scale, heads, shared, PAGE=page, D=depth, BD=wide, G=group,
        BG=max(16, triton.next_power_of_2(group)), SPLITS=splits,
        EXACT=query.dtype == torch.float32, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        _join_kernel[(rows * heads,)](
            parts, high, total, out, SPLITS=splits, D=depth, BD=wide, num_warps=1
        )
    return out


@triton.jit
def _sample_kernel(
    logits, noise, ends, token, own, row_of, written, budget, alive, out, length, stopped,
    vocabulary, longest, heat, top_p, top_k,
    GREEDY: tl.constexpr, NUCLEUS: tl.constexpr, ENDS: tl.constexpr, SHIFT: tl.constexpr,
    W: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    if tl.load(alive + slot) > 0:
        row = tl.load(row_of + slot).to(tl.int64)
        count = tl.load(written + slot)
        mine = logits + slot * vocabulary
        top = top_of(mine, vocabulary, B)
        if GREEDY:
            found = tl.full([B], vocabulary, tl.int32)
            for start in range(0, vocabulary, B):
                place = start + tl.arange(0, B)
                x = tl.load(mine + place, mask=place < vocabulary, other=-float("inf"))
                found = tl.minimum(found, tl.where(x.to(tl.float32) == top, place, vocabulary))
            choice = tl.minimum(tl.min(found, 0), vocabulary - 1)  # of NaN none is the largest
        else:
            edge, inside, _ = nucleus(
                mine, vocabulary, top, heat, top_p, top_k, NUCLEUS, SHIFT, W, B
            )
            slope = _LOG2E / heat
            level = tl.load(noise + row * longest + count) * inside
            run = 0.0
            base = 0.0
            first = 0
            last = 0
            for start in range(0, vocabulary, B):
                place = start + tl.arange(0, B)
                x = tl.load(mine + place, mask=place < vocabulary, other=-float("inf"))
                x = x.to(tl.float32)
                kept = ((order_key(x) >> SHIFT) >= edge) & (place < vocabulary)
                run += tl.sum(tl.where(kept, tl.exp2((x - top) * slope), 0.0), 0)
                last = tl.maximum(last, tl.max(tl.where(kept, place, 0), 0))
                if run <= level:
                    base = run
                    first = start + B
            place = first + tl.arange(0, B)
            x = tl.load(mine + place, mask=place < vocabulary, other=-float("inf")).to(tl.float32)
            kept = ((order_key(x) >> SHIFT) >= edge) & (place < vocabulary)
            sums = base + tl.cumsum(tl.where(kept, tl.exp2((x - top) * slope), 0.0), 0)
            # Rounding may put the level beyond the last sum: the last token kept is meant then.
            choice = tl.minimum(first + tl.sum((sums <= level).to(tl.int32), 0), last)
        tl.store(out + row * longest + count, choice)
        ended = 0
        for place in tl.static_range(ENDS):
            ended += (tl.load(ends + place) == choice).to(tl.int32)
        tl.store(token + slot, choice)
        tl.store(own + slot, tl.load(own + slot) + 1)
        tl.store(written + slot, count + 1)
        tl.store(length + row, count + 1)
        tl.store(stopped + row, (ended > 0).to(tl.int32))
        going = (ended == 0) & (count + 1 < tl.load(budget + slot))
        tl.store(alive + slot, going.to(tl.int32))


def sample(logits, slots, outputs, sampling):
    """Draw each living row's next token, write it down, and end the row where it ends."""
    greedy = sampling.temperature == 0.0
    _sample_kernel[(len(logits),)](
        logits, outputs.noise, outputs.ends, slots.token, slots.own, slots.row, slots.written,
        slots.budget, slots.alive, outputs.tokens, outputs.length, outputs.stopped,
        logits.shape[1], outputs.tokens.shape[1], 1.0 if greedy else sampling.temperature,
        sampling.top_p, sampling.top_k, GREEDY=greedy, NUCLEUS=sampling.top_p < 1.0,
        ENDS=len(outputs.ends), SHIFT=spare_bits(logits), W=SEARCH, B=BLOCK, num_warps=16,
    )  # fmt: skip
