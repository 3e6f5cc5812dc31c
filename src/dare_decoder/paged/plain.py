"""The operations of a decoding step in plain torch: for a CPU, and the truth for `kernels`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from dare_decoder.paged.state import Outputs, Slots
from dare_decoder.sampling import Sampling, sample_tokens

Pair = tuple[Tensor, Tensor]


def add_norm(
    residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor
) -> Tensor:
    """residual += delta (where given), then its RMS norm times weight, into out."""
    if delta is not None:
        residual += delta
    return out.copy_(_norm(residual, weight, eps))


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    whole = x.float()
    scaled = whole * torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + eps)
    return scaled.to(x.dtype) * weight


def silu_mul(both: Tensor, out: Tensor) -> Tensor:
    """silu(first half) times second half of each row."""
    gate, up = both.chunk(2, dim=-1)
    return torch.mul(silu(gate), up, out=out)


def rotate_store(
    qkv: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    angles: Pair,
    norms: Pair | None,
    slots: Slots,
    eps: float,
) -> None:
    """Rotated queries into `query`; rotated keys, and values, into each row's pages."""
    rows, heads, depth = query.shape
    shared, page = keys.shape[1:3]
    q, k, v = qkv.view(rows, -1, depth).split([heads, shared, shared], dim=1)
    if norms is not None:
        q, k = _norm(q, norms[0], eps), _norm(k, norms[1], eps)
    place = (slots.prefix + slots.own).long()
    cosine, sine = (table[place][:, None] for table in angles)
    query.copy_(_rotate(q, cosine, sine))
    front = (slots.prefix + page - 1) // page
    where = (front + slots.own // page).long()
    target = slots.table.gather(1, where[:, None])[:, 0].long()
    spot = (slots.own % page).long()
    keys[target, :, spot] = _rotate(k, cosine, sine).to(keys.dtype)
    values[target, :, spot] = v.to(values.dtype)


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return turned.to(x.dtype)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Slots,
    scale: float,
    out: Tensor,
    scratch: object = None,
) -> Tensor:
    """Attention of one token a row over its pages."""
    rows, heads, depth = query.shape
    shared, page = keys.shape[1:3]
    front = (slots.prefix + page - 1) // page
    pages = int((front + slots.own // page).max()) + 1
    number = torch.arange(pages, device=query.device)[None]
    held = torch.where(
        number < front[:, None],
        slots.prefix[:, None] - number * page,
        slots.own[:, None] + 1 - (number - front[:, None]) * page,
    )
    seen = torch.arange(page, device=query.device) < held[..., None]
    seen &= slots.alive[:, None, None] > 0
    seen = seen.reshape(rows, 1, 1, pages * page)
    table = slots.table[:, :pages].long()

    def laid(store: Tensor) -> Tensor:
        return store[table].transpose(1, 2).reshape(rows, shared, pages * page, depth).float()

    grouped = query.view(rows, shared, -1, depth).float()
    scores = (grouped @ laid(keys).transpose(-1, -2) * scale).masked_fill(~seen, -torch.inf)
    weight = scores.softmax(-1).nan_to_num(0.0)
    # What was never written may be NaN, and 0 times that is no 0.
    held_values = laid(values).masked_fill(~seen.transpose(-1, -2), 0.0)
    return out.copy_((weight @ held_values).reshape(rows, heads, depth))


def sample(logits: Tensor, slots: Slots, outputs: Outputs, sampling: Sampling) -> None:
    """Draw each living row's next token, write it down, and end the row where it ends."""
    going = slots.alive.nonzero()[:, 0]
    row, count = slots.row[going].long(), slots.written[going].long()
    choice = sample_tokens(logits[going], outputs.noise[row, count], sampling)
    outputs.tokens[row, count] = choice.to(outputs.tokens.dtype)
    ended = torch.isin(choice, outputs.ends)
    slots.token[going] = choice.int()
    slots.own[going] += 1
    slots.written[going] += 1
    outputs.length[row] = slots.written[going]
    outputs.stopped[row] = ended.int()
    slots.alive[going] = (~ended & (slots.written[going] < slots.budget[going])).int()
