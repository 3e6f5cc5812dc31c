"""Which generator a setting names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dare.config.named import imported
from dare.errors import InvalidInput
from dare.policy.generate import Generator, TransformersGenerator

if TYPE_CHECKING:
    from dare.policy.policy import Policy
    from dare.policy.vllm import VllmSettings

_METHODS = ("generate", "sync", "release", "close")


def build_generator(
    choice: str | Generator, policy: Policy, engine: VllmSettings | None = None
) -> Generator:
    """`transformers`, `vllm` (run as `engine` says), a class of your own as `module:Class` (it is
    given the policy), or an object that has the methods of `Generator`."""
    if not isinstance(choice, str):
        return _checked(choice, type(choice).__name__)
    if choice == "transformers":
        return TransformersGenerator(
            policy.readable,
            pad_id=policy.pad_id,
            end_ids=policy.ends,
            max_rows=policy.generation_rows,
            autocast=policy.autocast,
            progress=policy.progress,
        )
    if choice == "vllm":
        from dare.policy.vllm import VllmGenerator, VllmSettings

        return VllmGenerator(policy, engine or VllmSettings())
    if ":" not in choice:
        fix = "choose 'transformers', 'vllm', or a class of your own as module:Class"
        raise InvalidInput("generator", choice, fix)
    return _checked(imported("generator", choice)(policy), choice)


def _checked(made: Any, name: str) -> Generator:
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        fix = f"has no {', '.join(missing)}(); see dare.policy.generate.Generator"
        raise InvalidInput("generator", name, fix)
    generator: Generator = made
    return generator
