"""A Qwen2 model from a GGUF file as a folder of bf16 safetensors, in seconds, without a hub.

    python benchmarks/gpu_weights.py FILE.gguf FOLDER [--tokenizer FOLDER]

Needs the package `gguf`. Tensors are dequantised by as many processes as there are cores. A file
can hold the one matrix of a model with tied embeddings twice, at two precisions: the finer one (the
output's) is taken for both, so that the model has its published number of parameters. Ends with one
JSON line.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, GenerationConfig, Qwen2Config

gguf: Any = importlib.import_module("gguf")
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
}
INNER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
END, PAD = "<|im_end|>", "<|endoftext|>"
_tensors: dict[str, Any] = {}  # of the file, for the processes that are forked off


def main() -> None:
    """Read, dequantise, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", help="a folder; read from the file where none is given")
    options = parser.parse_args()
    began = time.perf_counter()
    reader = gguf.GGUFReader(str(options.file))
    _tensors.update({tensor.name: tensor for tensor in reader.tensors})
    largest_first = sorted(_tensors, key=lambda name: -int(_tensors[name].n_elements))
    doubled = "output.weight" in _tensors
    wanted = [name for name in largest_first if not (doubled and name == "token_embd.weight")]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        state = {
            name: torch.from_numpy(bits).view(torch.bfloat16)
            for name, bits in pool.map(dequantised, wanted)
        }
    if doubled:
        state["model.embed_tokens.weight"] = state.pop("lm_head.weight")
    options.folder.mkdir(parents=True, exist_ok=True)
    save_file(state, str(options.folder / "model.safetensors"), metadata={"format": "pt"})
    tokenizer = tokenizer_of(options.file, options.tokenizer)
    config = config_of(reader, tokenizer)
    config.save_pretrained(options.folder)
    ends = [tokenizer.convert_tokens_to_ids(END), tokenizer.convert_tokens_to_ids(PAD)]
    GenerationConfig(eos_token_id=ends, pad_token_id=ends[1]).save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)
    parameters = sum(tensor.numel() for tensor in state.values())
    seconds = round(time.perf_counter() - began, 1)
    print(json.dumps({"parameters": parameters, "seconds": seconds}))


def dequantised(key: str) -> tuple[str, Any]:
    """Name in transformers and the bits of the bf16 values, rounded to nearest even."""
    tensor = _tensors[key]
    if key in OUTER:
        name = OUTER[key]
    else:
        _, layer, part, kind = key.split(".")
        name = f"model.layers.{layer}.{INNER[part]}.{kind}"
    data, pieces = tensor.data, []
    # In pieces: the float32 copy of a large matrix is slow to touch.
    step = max(1, (1 << 22) // max(1, data.shape[-1])) if data.ndim > 1 else len(data)
    for start in range(0, len(data), step):
        values = gguf.dequantize(data[start : start + step], tensor.tensor_type)
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        pieces.append(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))
    return name, np.concatenate(pieces).reshape(*(int(size) for size in tensor.shape[::-1]))


def tokenizer_of(file: Path, folder: str | None) -> Any:
    """The tokenizer with the end and padding tokens that the model was trained with."""
    if folder is not None:
        return AutoTokenizer.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token = END, PAD, None
    return tokenizer


def config_of(reader: Any, tokenizer: Any) -> Qwen2Config:
    """The model's shape from the file's own fields."""

    def field(name: str) -> Any:
        return reader.fields[name].contents()

    kind = field("general.architecture")
    if kind != "qwen2":
        raise SystemExit(f"{kind} is not read here, only qwen2")
    config = Qwen2Config(
        vocab_size=int(_tensors["token_embd.weight"].shape[1]),
        hidden_size=field("qwen2.embedding_length"),
        num_hidden_layers=field("qwen2.block_count"),
        num_attention_heads=field("qwen2.attention.head_count"),
        num_key_value_heads=field("qwen2.attention.head_count_kv"),
        intermediate_size=field("qwen2.feed_forward_length"),
        max_position_embeddings=field("qwen2.context_length"),
        rms_norm_eps=round(float(field("qwen2.attention.layer_norm_rms_epsilon")), 12),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": float(field("qwen2.rope.freq_base")),
        },
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
        dtype=torch.bfloat16,
    )
    config.architectures = ["Qwen2ForCausalLM"]
    return config


if __name__ == "__main__":
    main()
