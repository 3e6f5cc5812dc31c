#!/usr/bin/env python3
"""Make the pocket policy: pre-train a tiny Llama on worked solutions that contain mistakes.

    python scripts/pretrain_pocket.py --out src/dare/pocket/weights

The text states most elementary facts correctly, some wrongly almost always, and some now and
then. The policy learns each fact with its own reliability, and reinforcement learning can repair
a fact only through problems that contain it.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dare import tasks
from dare.curriculum import hints
from dare.tasks.families import FAMILIES, LEVELS, Family

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unk|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# Chance that a fact is (half known, mostly wrong), by the place of its operand.
KINDS = ((0.06, 0.03),) * 3 + ((0.18, 0.18),) * 3 + ((0.30, 0.35),) * 2
HALF = (0.2, 0.7)  # how often a half-known fact is written correctly
WRONG = (0.001, 0.01)  # and a mostly wrong one, uniform in the logarithm
SLIP = 0.001  # mean rate of mistakes in a known fact

# Shares of (direct answer, steps, steps written twice) by the number of steps; the rest is steps.
STYLES = {1: (0.40, 0.35, 0.25), 2: (0.10, 0.65, 0.25), 3: (0.04, 0.76, 0.20)}
LONG_STYLE = (0.02, 0.98, 0.0)
HINTED, LONGER = 0.06, 0.03  # shares of prompts with a hint, with a request to think longer


class Beliefs:
    """What the text says about every fact: how often the truth, and which values otherwise."""

    def __init__(self, family: Family, seed: int) -> None:
        rng = np.random.default_rng([seed, family.modulus])
        shape = (family.modulus, len(family.operands))
        half, wrong = np.array(KINDS).T
        kind = rng.random(shape)
        known = 1 - rng.uniform(0, 2 * SLIP, shape)
        rare = np.exp(rng.uniform(*np.log(WRONG), shape))
        self.truth = family.apply(
            np.arange(family.modulus)[:, None], np.array(family.operands)[None, :]
        )
        self.right = np.where(kind < half, rng.uniform(*HALF, shape), known)
        self.right = np.where(kind > 1 - wrong, rare, self.right)
        # Shifts by something nonzero: a wrong value is never the right one.
        shift = rng.integers(1, family.modulus, (2, *shape))
        self.wrong = (self.truth + shift) % family.modulus

    def say(self, x: np.ndarray, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """What the text makes of x and the operand at `place`, with its mistakes."""
        other = np.where(rng.random(len(x)) < 0.85, *self.wrong[:, x, place])
        return np.where(rng.random(len(x)) < self.right[x, place], self.truth[x, place], other)


def documents(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """(user message, reply) pairs, levels and families alike; in order of level and family."""
    rng = np.random.default_rng([seed, 1])
    cells = [(family, level) for level in LEVELS.values() for family in FAMILIES.values()]
    beliefs = {name: Beliefs(family, seed) for name, family in FAMILIES.items()}
    for family, level in cells:
        rows = count // len(cells)
        place = rng.integers(level.low, level.high, (rows, level.steps))
        start = rng.integers(1, family.modulus, rows)
        said, x, truth, y = [], start, [], start
        for step in range(level.steps):
            said.append(x := beliefs[family.name].say(x, place[:, step], rng))
            truth.append(y := beliefs[family.name].truth[y, place[:, step]])
        operands = np.array(family.operands)[place]
        shares = STYLES.get(level.steps, LONG_STYLE)
        style = rng.choice(3, rows, p=shares)
        aid = rng.random(rows)
        columns = (start, operands, np.stack(said, 1), np.stack(truth, 1), style, aid)
        for s, ks, values, right, how, help_ in zip(*(c.tolist() for c in columns), strict=True):
            prompt, answer = family.prompt(s, ks), values[-1]
            if help_ < HINTED and level.steps > 2:
                # A hint is a true beginning; the reply starts by copying it.
                known = level.steps - 1
                skeleton = family.chain(s, ks[:known], right[:known])
                prompt = hints.hinted(prompt, [skeleton + family.step(ks[known])])
                end = beliefs[family.name].say(
                    np.array([right[known - 1]]), np.array([family.operands.index(ks[known])]), rng
                )
                values, how = [*right[:known], int(end[0])], 1
                answer = values[-1]
            elif help_ > 1 - LONGER:
                prompt, how = hints.think_longer(prompt), 2 if level.steps <= 3 else 1
            chain = family.chain(s, ks, values) + "\n"
            yield prompt, f"{chain * how}\\boxed{{{answer}}}"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, and one for each fixed phrase of the box and of the two requests."""
    specials = [PAD, END, UNKNOWN, *ROLES]
    characters = ["\n", *map(chr, range(32, 127))]
    vocabulary = {token: i for i, token in enumerate([*specials, *characters])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    core.decoder = decoders.Fuse()
    opening, closing = hints.hinted("", ["@"]).split("@")
    phrases = [r"\boxed{", " mod ", opening, closing, hints.think_longer("")]
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    core.add_tokens([AddedToken(t, special=False, normalized=False) for t in phrases])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def build_model(tokenizer: PreTrainedTokenizerFast, width: int, layers: int) -> LlamaForCausalLM:
    """A fresh Llama: wide feed-forward layers, since that is where facts are kept."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def encode(
    tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, right-padded, and where each reply begins."""
    core = tokenizer.backend_tokenizer
    heads = [f"<|user|>{prompt}<|end|><|assistant|>" for prompt, _ in pairs]
    texts = [f"{head}{reply}{END}" for head, (_, reply) in zip(heads, pairs, strict=True)]
    begins = [len(e.ids) for e in core.encode_batch(heads, add_special_tokens=False)]
    rows = [e.ids for e in core.encode_batch(texts, add_special_tokens=False)]
    width = -(-max(map(len, rows)) // 8) * 8  # a multiple of 8 is what GPUs are fast at
    ids = np.full((len(rows), width), tokenizer.pad_token_id, np.int16)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return torch.from_numpy(ids), torch.tensor(begins)


def train(
    model: LlamaForCausalLM,
    ids: torch.Tensor,
    begins: torch.Tensor,
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
) -> float:
    """Next-token training on the replies alone; returns the mean loss of the last tenth."""
    device = model.device
    ids, begins = ids.to(device), begins.to(device)
    pad = model.config.pad_token_id
    place = torch.arange(1, ids.shape[1], device=device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.03, final_div_factor=100
    )
    generator = torch.Generator(device=device).manual_seed(seed)
    losses = []
    for step in range(steps):
        rows = torch.randint(len(ids), (batch,), generator=generator, device=device)
        x = ids[rows].long()
        target = x[:, 1:].masked_fill((place < begins[rows, None]) | (x[:, 1:] == pad), -100)
        # Padding stands on the right, where a causal model never looks back at it: no mask.
        logits = model(input_ids=x, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if step % 500 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
    return float(torch.stack(losses[-max(1, steps // 10) :]).mean())


@torch.inference_mode()
def success(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[tasks.Problem],
    *,
    samples: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and lengths in tokens, problems x samples."""
    torch.manual_seed(seed)
    rewards, lengths = [], []
    for at in range(0, len(problems), 64):
        some = problems[at : at + 64]
        chats = [[{"role": "user", "content": problem["prompt"]}] for problem in some]
        texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        out = model.generate(
            input_ids=inputs["input_ids"].to(model.device),
            attention_mask=inputs["attention_mask"].to(model.device),
            do_sample=True,
            temperature=temperature,
            top_p=top_p,
            top_k=0,
            max_new_tokens=64,
            num_return_sequences=samples,
        )[:, inputs["input_ids"].shape[1] :]
        replies = tokenizer.batch_decode(out, skip_special_tokens=True)
        answers = [problem["answer"] for problem in some for _ in range(samples)]
        rewards += [tasks.reward(r, a) for r, a in zip(replies, answers, strict=True)]
        lengths += (out != tokenizer.pad_token_id).sum(1).tolist()
    shape = (len(problems), samples)
    return np.array(rewards).reshape(shape), np.array(lengths).reshape(shape)


def report(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int, seed: int
) -> dict[str, Any]:
    """Success and length by level, and how many of eight rollouts succeed, on training problems."""
    problems = tasks.generate(count, seed)
    level = np.array([problem["level"] for problem in problems])
    figures: dict[str, Any] = {"problems": count, "samples": 8}
    for name, temperature, top_p in (("T1.0", 1.0, 1.0), ("T0.6-p0.95", 0.6, 0.95)):
        rewards, lengths = success(
            model, tokenizer, problems, samples=8, temperature=temperature, top_p=top_p, seed=seed
        )
        groups = np.bincount(rewards.sum(1).astype(int), minlength=9) / count
        figures[name] = {
            "success": round(float(rewards.mean()), 4),
            "by_level": [round(float(rewards[level == k].mean()), 3) for k in LEVELS],
            "tokens_by_level": [round(float(lengths[level == k].mean()), 1) for k in LEVELS],
            "groups_with_0_to_8_right": [round(float(g), 3) for g in groups],
        }
        print(name, *figures[name]["by_level"], flush=True)
    return figures


def main() -> None:
    """Make, save and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--documents", type=int, default=400_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument(
        "--problems", type=int, default=768, help="measured afterwards, 8 times each"
    )
    args = parser.parse_args()
    began = time.time()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer = build_tokenizer()
    ids, begins = encode(tokenizer, list(documents(args.documents, args.seed)))
    print(f"{len(ids)} documents of up to {ids.shape[1]} tokens, {time.time() - began:.0f} s")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model(tokenizer, args.width, args.layers).to(device)
    loss = train(
        model, ids, begins, steps=args.steps, batch=args.batch, rate=args.rate, seed=args.seed
    )
    seconds = time.time() - began
    model.generation_config.update(do_sample=True, temperature=1.0, top_p=1.0, top_k=0)
    model.generation_config.update(max_new_tokens=64)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    figures = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": round(loss, 4),
        "seconds": round(seconds),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        **{k: v for k, v in vars(args).items() if k != "out"},
        "measured": report(model, tokenizer, args.problems, args.seed),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
