"""Policy: the one owner of the model. It generates, scores, reads and embeds.

What every such call needs is set here and nowhere else: the module under the trainer's wrappers,
eval mode, no gradients, mixed precision, and whole weights where they lie in parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dare.config.named import imported
from dare.errors import InvalidInput, first_line, require
from dare.policy.embed import embed_prompts, prompt_states
from dare.policy.generate import Generated, GenerationRequest, Generator, TransformersGenerator
from dare.policy.model import ReferencePolicy, context_of, end_ids
from dare.policy.score import Scores, mean_entropy, score
from dare.policy.sharded import WholeModel
from dare_decoder import Sampling
from dare_decoder.batching import IntArray, Layout, layout_of
from dare_decoder.model import reading

if TYPE_CHECKING:
    from dare.policy.vllm_engine import VllmSettings

_Read = TypeVar("_Read")
_LOG = logging.getLogger(__name__)
_METHODS = ("generate", "sync", "release", "close")
_LEAST_TOKENS = 512  # a pass is not made smaller than this when memory runs out


class Policy:
    """A causal language model with its tokenizer, as the rest of DARE uses it.

    `unwrap` finds the bare module anew each time, since DDP wraps it and FSDP replaces it.
    `precision` is the dtype of mixed precision (None: the weights' own). `sharded` where a trainer
    is about to lay the weights in parts on several processes: all of them make the same calls
    then, with any texts or none. `generator` is `transformers`, `vllm` (run as `engine` says),
    `module:Class` or an object.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        unwrap: Callable[[], Any] | None = None,
        precision: torch.dtype | None = None,
        generator: str | Generator = "transformers",
        engine: VllmSettings | None = None,
        generation_rows: int = 512,
        batch_tokens: int = 16384,
        sharded: bool = False,
        reference: bool = False,
        progress: Callable[[int], Any] | None = None,
    ) -> None:
        self._unwrap = unwrap or (lambda: model)
        self.tokenizer, self.precision = tokenizer, precision
        self.pad_id, self.ends = int(tokenizer.pad_token_id), end_ids(model, tokenizer)
        self.context = context_of(model)
        self.words = int(model.config.get_text_config().vocab_size)
        self.generation_rows, self.batch_tokens = generation_rows, batch_tokens
        self.progress = progress
        self._whole = WholeModel(model) if sharded else None
        self._reference = ReferencePolicy(self.readable()) if reference else None
        self.generator = build_generator(generator, self, engine)

    @property
    def module(self) -> Any:
        """The bare model, without the trainer's wrappers."""
        return self._unwrap()

    @property
    def device(self) -> torch.device:
        """Where it is."""
        found: torch.device = next(self.module.parameters()).device
        return found

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of mixed precision; none where the weights' own dtype is used."""
        if self.precision is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.precision)

    def readable(self) -> Any:
        """The bare model, whole: its passes are no concern of other processes."""
        return self.module if self._whole is None else self._whole.of(self.module, self.precision)

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """`readable` for a pass that learns nothing."""
        module = self.readable()
        with reading(module), self.autocast():
            yield module

    @contextmanager
    def replaced(self) -> Iterator[Any]:
        """The model, whole and in its own dtype, to load weights into."""
        self._drop()
        yield self.module if self._whole is None else self._whole.of(self.module)
        if self._whole is not None:
            self._whole.spread(self.module)
        self._drop()

    # ---- responses ----

    def generate(self, request: GenerationRequest, sampling: Sampling) -> Generated:
        """One response for each rollout of the request, from the policy as it is now."""
        return _fitting(
            self.generator, self.generator.generate(request, sampling), request, self.words
        )

    def room(self, prompt: IntArray) -> int:
        """Tokens that a response to this prompt may have before the context is full."""
        return self.context - len(prompt)

    # ---- given texts ----

    def score(
        self,
        prompts: Sequence[IntArray],
        responses: Sequence[IntArray],
        sampling: Sampling,
        *,
        drawn: bool = False,
    ) -> Scores:
        """Log-probs of these responses under the policy of now; every process takes part."""
        with self.reading() as module:
            return self._score(module, prompts, responses, sampling, drawn)

    def reference_score(
        self, prompts: Sequence[IntArray], responses: Sequence[IntArray], sampling: Sampling
    ) -> Scores:
        """The same under the policy as it started; for runs with a KL term."""
        assert self._reference is not None, "asked for when the policy was made"
        with self.reading() as module, self._reference.active(module) as model:
            return self._score(model, prompts, responses, sampling, False)

    def embed(self, prompts: Sequence[IntArray]) -> NDArray[np.float32]:
        """Mean-pooled last hidden state of each prompt."""
        with self.reading() as module:
            return self._halving(partial(embed_prompts, module, prompts))

    def states(self, prompts: Sequence[IntArray]) -> NDArray[np.float32]:
        """The state of each prompt's last token, at a middle layer."""
        with self.reading() as module:
            return self._halving(partial(prompt_states, module, prompts))

    def entropy(
        self, prompts: Sequence[IntArray], responses: Sequence[IntArray], temperature: float
    ) -> NDArray[np.float64]:
        """Mean token entropy of each response."""
        with self.reading() as module:
            return self._halving(partial(mean_entropy, module, prompts, responses, temperature))

    # ---- the update ----

    @property
    def drops_out(self) -> bool:
        """Whether the update's pass is another function than the one that samples: with dropout
        its log-probs are those of no policy that ever drew a response."""
        module = self.module
        config = module.config.get_text_config()
        if getattr(config, "attention_dropout", None):
            return True
        return any(isinstance(part, nn.Dropout) and part.p > 0 for part in module.modules())

    @property
    def layout(self) -> Layout:
        """How its batches lie: packed or padded, as the model allows."""
        return layout_of(self.module, self.pad_id)

    def release(self) -> None:
        """An update begins: what only reading needs gives its memory back."""
        self._drop()
        self.generator.release()

    def updated(self) -> None:
        """The weights have changed."""
        self._drop()
        self.generator.sync()

    def close(self) -> None:
        """The run is over."""
        self._drop()
        self.generator.close()

    def _drop(self) -> None:
        if self._whole is not None:
            self._whole.drop()

    def _score(
        self,
        module: Any,
        prompts: Sequence[IntArray],
        responses: Sequence[IntArray],
        sampling: Sampling,
        drawn: bool,
    ) -> Scores:
        given, layout = (prompts, responses, sampling), self.layout
        return self._halving(partial(score, module, *given, drawn=drawn, layout=layout))

    def _halving(self, read: Callable[..., _Read]) -> _Read:
        """What `read` makes of `batch_tokens` at a time. Where memory runs out, of half as many
        from then on."""
        while self.batch_tokens > _LEAST_TOKENS:
            with suppress(torch.OutOfMemoryError):
                return read(pad_id=self.pad_id, max_batch_tokens=self.batch_tokens)
            # Out here nothing of the failed try is held any more.
            self.batch_tokens //= 2
            _LOG.warning("out of memory: reading %d tokens at a time", self.batch_tokens)
            torch.cuda.empty_cache()
        return read(pad_id=self.pad_id, max_batch_tokens=self.batch_tokens)


def build_generator(
    choice: str | Generator, policy: Policy, engine: VllmSettings | None = None
) -> Generator:
    """`transformers`, `vllm` (run as `engine` says), a class of your own as `module:Class` (it is
    given the policy), or an object that has the methods of `Generator`."""
    if not isinstance(choice, str):
        return _checked(choice, type(choice).__name__)
    if choice == "transformers":
        rows = policy.generation_rows
        require(rows >= 1, "generation_rows", rows, "must be at least 1")
        return TransformersGenerator(
            policy.readable,
            pad_id=policy.pad_id,
            end_ids=policy.ends,
            max_rows=rows,
            autocast=policy.autocast,
            progress=policy.progress,
        )
    if choice == "vllm":
        from dare.policy.vllm import VllmGenerator
        from dare.policy.vllm_engine import VllmSettings

        return VllmGenerator(policy, engine or VllmSettings())
    if ":" not in choice:
        fix = "choose 'transformers', 'vllm', or a class of your own as module:Class"
        raise InvalidInput("generator", choice, fix)
    kind = imported("generator", choice)
    try:
        return _checked(kind(policy), choice)
    except InvalidInput:
        raise
    except Exception as error:  # of its constructor
        fix = f"cannot be made from a policy ({type(error).__name__}: {first_line(error)})"
        raise InvalidInput("generator", choice, fix) from error


def _fitting(generator: Generator, made: Any, request: GenerationRequest, words: int) -> Generated:
    """What a generator has made, as arrays; refused unless it is what was asked for."""
    name, count = f"generator {type(generator).__name__}", len(request.prompt_R)
    given = getattr(made, "tokens", ()), getattr(made, "finish_R", ())
    fix = f"must give tokens and an end for each of {count} rollouts, as Generated has it"
    require([len(one) for one in given] == [count, count], name, made, fix)
    arrays = [np.asarray(one) for one in made.tokens]
    for place, (tokens, most) in enumerate(zip(arrays, request.max_tokens_R, strict=True)):
        fits = tokens.ndim == 1 and len(tokens) <= most and tokens.dtype.kind in "iu"
        fits = fits and bool(((tokens >= 0) & (tokens < words)).all())
        fix = f"must be at most {most} ids of tokens below {words}"
        require(fits, f"{name}, rollout {place}", tokens, fix)
    return Generated(arrays, np.asarray(made.finish_R), made.logprobs)


def _checked(made: Any, name: str) -> Generator:
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        fix = f"has no {', '.join(missing)}(); see dare.policy.generate.Generator"
        raise InvalidInput("generator", name, fix)
    generator: Generator = made
    return generator
