"""The policy behind a name: a hub id, a model folder, a training run, a checkpoint, `pocket`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dare.errors import InvalidInput
from dare.runs.files import load_yaml

if TYPE_CHECKING:
    from dare.policy.policy import Policy

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w.-]+)?")
_PROBE = 1 << 16
_PROBES = 64


@dataclass(frozen=True)
class Located:
    """Where a model is, and what is known of it before it is loaded."""

    name: str
    path: str
    system_prompt: str | None = None
    """The one it was trained with, where it is a run of `dare train`."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Likewise what its chat template was given."""
    weights: str | None = None
    """A fingerprint of the weights of a local model."""


def locate(name: str) -> Located:
    """Find the model; a run folder stands for its newest complete checkpoint."""
    if name == "pocket":
        from dare import pocket

        return Located(name, str(pocket.path()), weights=_fingerprint(pocket.path()))
    folder = Path(name).expanduser()
    if folder.is_dir():
        home = _model_folder(folder)
        shown = _trained_with(folder)
        chat = shown.get("chat_template_kwargs")
        return Located(
            name,
            str(home),
            shown.get("system_prompt"),
            chat if isinstance(chat, dict) else None,
            _fingerprint(home),
        )
    if folder.exists() or name.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(name):
        fix = "is neither a folder with a model or checkpoints nor a hub id"
        raise InvalidInput("MODEL", name, fix)
    return Located(name, name)


def open_model(found: Located, *, dtype: str = "auto", rows: int = 256) -> Policy:
    """A located model as a policy, on the GPU where there is one."""
    import torch

    from dare.policy.model import check_dtype, load
    from dare.policy.policy import Policy
    from dare.templates.encode import OPTIONS

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = check_dtype(dtype, device, "--dtype")
    try:
        model, tokenizer = load(found.path, None, dtype=kind)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        line = str(error).strip().partition("\n")[0][:200]
        raise InvalidInput("MODEL", found.name, f"cannot be loaded: {line}") from None
    setattr(tokenizer, OPTIONS, found.chat_template_kwargs)
    return Policy(model.to(device).eval(), tokenizer, generation_rows=rows)


def _model_folder(folder: Path) -> Path:
    if any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        return folder
    from dare.runs.checkpoint import newest

    found = newest(folder)
    if found is None:
        fix = "has neither a model (config.json) nor a complete checkpoint"
        raise InvalidInput("MODEL", str(folder), fix)
    return found


def _trained_with(folder: Path) -> dict[str, Any]:
    """The run's settings of training, where it is one."""
    for place in (folder, folder.parent):
        path = place / "config.yaml"
        if path.is_file():
            try:
                config = load_yaml(path.read_text(encoding="utf-8"))
                training = config.get("training") if isinstance(config, dict) else None
            except (yaml.YAMLError, UnicodeDecodeError):
                return {}
            return training if isinstance(training, dict) else {}
    return {}


def _fingerprint(folder: Path) -> str:
    """Of pieces all over the weight files: training moves every tensor, reading all takes long."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with open(path, "rb") as file:
            for place in range(_PROBES):
                file.seek(max(0, size - _PROBE) * place // (_PROBES - 1))
                digest.update(file.read(_PROBE))
    return digest.hexdigest()[:16]


def counter(name: str) -> Any:
    """A function that counts the tokens of a text with this model's tokenizer."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(locate(name).path)
    except (OSError, ValueError) as error:
        line = str(error).strip().partition("\n")[0][:200]
        raise InvalidInput("--tokenizer", name, f"cannot be loaded: {line}") from None
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
