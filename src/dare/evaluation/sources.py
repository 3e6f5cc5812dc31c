"""Where responses come from: a policy, greedy or sampled, or a file; the policy behind a name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dare.curriculum.rollouts import Finish
from dare.data.load import is_hub_id
from dare.errors import InvalidInput, first_line, require
from dare.evaluation.benchmarks import Benchmark, Problem
from dare.evaluation.responses import ResponseFile, Saved, check_form, detect
from dare.policy.generate import GenerationRequest, Generator
from dare.runs.files import read_yaml
from dare.templates import Template, load_template
from dare.templates.encode import encode, give_options
from dare_decoder import Sampling
from dare_decoder.sampling import COLDEST

if TYPE_CHECKING:
    from dare.policy.policy import Policy

MOST_SAMPLES = 4096


@dataclass(frozen=True)
class Drawing:
    """How responses are drawn, checked before a model is loaded."""

    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 3072
    seed: int = 0

    def __post_init__(self) -> None:
        many, warm = self.samples, self.temperature
        require(1 <= many <= MOST_SAMPLES, "--samples", many, f"must be 1 to {MOST_SAMPLES}")
        known = 0 <= warm < float("inf")
        require(known, "--temperature", warm, "must be a number from 0 up; 0 is greedy")
        fix = f"must be 0, which is greedy, or at least {COLDEST:g}"
        require(warm == 0 or warm >= COLDEST, "--temperature", warm, fix)
        fix = "greedy responses would all be the same; use --samples 1 or a temperature"
        require(many == 1 or warm > 0, "--temperature", warm, fix)
        require(0 < self.top_p <= 1, "--top-p", self.top_p, "must be in (0, 1]")
        require(self.max_tokens >= 1, "--max-tokens", self.max_tokens, "must be at least 1")
        require(self.seed >= 0, "--seed", self.seed, "must not be negative")

    @property
    def sampling(self) -> Sampling:
        """The distribution; a nucleus makes no difference to the likeliest token."""
        return Sampling(self.temperature, 1.0 if self.temperature == 0.0 else self.top_p)


@dataclass(frozen=True)
class Respondent:
    """A policy that answers problems; `generator` may be any, `context` is what it can read."""

    generator: Generator
    tokenizer: Any
    context: int
    drawing: Drawing = Drawing()

    def answer(
        self, name: str, places: Sequence[int], problems: Sequence[Problem], template: Template
    ) -> list[dict[str, Any]]:
        """Responses to these problems, which stand at `places` of the benchmark `name`, with their
        tokens and why each ended.

        Each response has its own random numbers, named by benchmark, place and sample: it is the
        same in whatever batch it is drawn, and the first of 64 samples are those of a run with 8.
        A prompt that leaves no room gets empty responses that ended for that reason.
        """
        most, count = self.drawing.max_tokens, self.drawing.samples
        prompts = [encode(self.tokenizer, template.messages(one.shown)) for one in problems]
        room = [min(most, self.context - len(prompt)) for prompt in prompts]
        fits = [row for row, tokens in enumerate(room) if tokens >= 1]
        none = {"responses": [""] * count, "tokens": [0] * count, "finish": ["prompt"] * count}
        found: list[dict[str, Any]] = [none for _ in prompts]
        if not fits:
            return found
        rows_R = np.repeat(np.arange(len(fits)), count)
        noise_P = np.array([places[row] * MOST_SAMPLES for row in fits], dtype=np.int64)
        request = GenerationRequest(
            prompts=[prompts[row] for row in fits],
            prompt_R=rows_R,
            max_tokens_R=np.array([room[row] for row in fits], dtype=np.int64)[rows_R],
            noise_R=noise_P[rows_R] + np.tile(np.arange(count), len(fits)),
            seed=self.drawing.seed,
            step=0,
            purpose=f"evaluate {name}",
        )
        made = self.generator.generate(request, self.drawing.sampling)
        texts = self.tokenizer.batch_decode(made.tokens, skip_special_tokens=True)
        finish = ["length" if int(why) == Finish.LENGTH else "stop" for why in made.finish_R]
        for place, row in enumerate(fits):
            own = slice(place * count, (place + 1) * count)
            sizes = [len(tokens) for tokens in made.tokens[own]]
            found[row] = {"responses": texts[own], "tokens": sizes, "finish": finish[own]}
        return found


class Source(Protocol):
    """Gives responses to the problems of a benchmark."""

    @property
    def step(self) -> int:
        """Problems answered, scored and written at a time: what a crash loses."""
        ...

    def begin(self, item: Benchmark, problems: Sequence[Problem]) -> tuple[list[int], str]:
        """Places of the problems that it has responses for, and the form these have."""
        ...

    def take(self, places: Sequence[int], problems: Sequence[Problem]) -> list[dict[str, Any]]:
        """Responses to problems of the benchmark begun last, as fields of their records."""
        ...


@dataclass
class FromModel:
    """Asks a policy; the template is the benchmark's unless another one is given."""

    respondent: Respondent
    form: str = "native"
    template: Callable[[Benchmark], Template] = field(
        default=lambda item: load_template(item.template)
    )
    batch: int = 512

    @property
    def step(self) -> int:
        """About `batch` responses."""
        return max(1, self.batch // self.respondent.drawing.samples)

    def begin(self, item: Benchmark, problems: Sequence[Problem]) -> tuple[list[int], str]:
        """All of them."""
        check_form(item, self.form)
        self._item, self._words = item, self.template(item)
        return list(range(len(problems))), self.form

    def take(self, places: Sequence[int], problems: Sequence[Problem]) -> list[dict[str, Any]]:
        """What it answers."""
        return self.respondent.answer(self._item.name, places, problems, self._words)


@dataclass
class FromFile:
    """Takes saved responses; `count` gives the tokens of a text where a tokenizer is at hand."""

    file: ResponseFile
    form: str = "auto"
    count: Callable[[str], int] | None = None
    batch: int = 512

    @property
    def step(self) -> int:
        """About `batch` responses."""
        responses = sum(map(len, self._found.values()))
        return max(1, self.batch * len(self._found) // max(responses, 1))

    def begin(self, item: Benchmark, problems: Sequence[Problem]) -> tuple[list[int], str]:
        """Those that the file has responses to."""
        self._found: dict[int, list[Saved]] = self.file.match(item.name, problems)
        places = sorted(self._found)
        form = self.form
        if form == "auto":
            texts = [[one.text for one in self._found[place]] for place in places]
            form = detect(item, [problems[place] for place in places], texts)
        check_form(item, form)
        return places, form

    def take(self, places: Sequence[int], problems: Sequence[Problem]) -> list[dict[str, Any]]:
        """What the file holds."""
        return [self._record(self._found[place]) for place in places]

    def _record(self, saved: Sequence[Saved]) -> dict[str, Any]:
        count = self.count
        record: dict[str, Any] = {
            "responses": [one.text for one in saved],
            "tokens": [
                count(one.text) if count is not None and one.tokens is None else one.tokens
                for one in saved
            ],
            "finish": [one.finish for one in saved],
        }
        if any(one.name is not None for one in saved):
            record["names"] = [one.name for one in saved]
        if any(one.label is not None for one in saved):
            record["labels"] = [one.label for one in saved]
        return record


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
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):
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
    if os.path.exists(folder) or name.startswith((".", "/", "~")) or not is_hub_id(name):
        fix = "is neither a folder with a model or checkpoints nor a hub id"
        raise InvalidInput("MODEL", name, fix)
    return Located(name, name)


def open_model(found: Located, *, dtype: str = "auto", rows: int = 256) -> Policy:
    """A located model as a policy, on the GPU where there is one."""
    import torch

    from dare.policy.model import check_device, check_dtype, load
    from dare.policy.policy import Policy

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = check_dtype(dtype, device, "--dtype")
    try:
        model, tokenizer = load(found.path, None, dtype=kind)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise _not_loaded("MODEL", found.name, error) from None
    check_device(model, device, "--dtype")
    give_options(tokenizer, found.chat_template_kwargs)
    return Policy(model.to(device).eval(), tokenizer, generation_rows=rows)


def _model_folder(folder: Path) -> Path:
    if any(os.path.isfile(folder / name) for name in ("config.json", "adapter_config.json")):
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
        if os.path.isfile(place / "config.yaml"):
            with suppress(InvalidInput):  # no YAML: a file of somebody else's
                training = read_yaml(place / "config.yaml").get("training")
                return training if isinstance(training, dict) else {}
            return {}
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
        raise _not_loaded("--tokenizer", name, error) from None
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _not_loaded(field: str, name: str, error: Exception) -> InvalidInput:
    return InvalidInput(field, name, f"cannot be loaded: {first_line(error)}")
