"""A model folder with random weights and the shape of Qwen2.5-1.5B, for machines without a hub.

    python benchmarks/gpu_shape.py FOLDER [--tokenizer FOLDER]

Speed and memory do not depend on the values of the weights, so engines and trainers can be measured
on it: 151936 tokens, 28 layers of 1536, 12 query and 2 key-value heads of 128, 8960 in between,
rotary base 1e6, tied embeddings, bf16, 1.54 B parameters, 3.1 GB on disk. Responses of random
weights practically never end by themselves.

The tokenizer is a copy of a given one, or one token a byte: that vocabulary is smaller than the
model's on purpose, as is usual, and a sampled token without a text decodes to nothing. Ends with
one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SHAPE: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
SMALL: dict[str, Any] = {
    **SHAPE,
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 128,
}
ROTARY_BASE = 1e6
PAD, END, START = "<|endoftext|>", "<|im_end|>", "<|im_start|>"
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Any:
    """One token a byte, and three that mark turns and padding: 259 in all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(
        models.BPE(vocab={byte: place for place, byte in enumerate(alphabet)}, merges=[])
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        padding_side="left",
    )
    tokenizer.chat_template = CHAT
    return tokenizer


def write_shape(
    folder: Path, tokenizer: Path | None = None, *, small: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Write the folder; with small, the same architecture at a size for tests on a CPU."""
    words: Any = AutoTokenizer.from_pretrained(tokenizer) if tokenizer else byte_tokenizer()
    shape = SMALL if small else SHAPE
    if len(words) > shape["vocab_size"]:
        raise SystemExit(
            f"--tokenizer has {len(words)} tokens, the model {shape['vocab_size']}: "
            "give a smaller one, or none"
        )
    config = Qwen2Config(
        **shape,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        with torch.device(device):
            model: Any = Qwen2ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.save_pretrained(folder, max_shard_size="20GB")
    words.save_pretrained(folder)
    parameters: int = sum(parameter.numel() for parameter in model.parameters())
    return {"folder": str(folder), "parameters": parameters, "tokens": len(words)}


def main() -> None:
    """Write one folder, unless it is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="a folder to copy the tokenizer from")
    parser.add_argument("--small", action="store_true", help="0.1 M parameters, to try programs on")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    written = write_shape(options.folder, options.tokenizer, small=options.small, seed=options.seed)
    print(json.dumps({**written, "seconds": round(time.perf_counter() - start, 1)}))


if __name__ == "__main__":
    main()
