"""The pocket policy: a 0.2 M parameter Llama inside the package, for the problems of `dare.tasks`.

`path()` is an ordinary model folder, so everything that takes a model name takes it too:
`AutoModelForCausalLM.from_pretrained(pocket.path())`. How it was made: docs/lab/pocket.md.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["load_policy", "load_tokenizer", "path"]


def path() -> Path:
    """The folder with the weights, the configuration and the tokenizer."""
    return Path(__file__).parent / "weights"


def load_policy() -> "PreTrainedModel":
    """The pre-trained policy, in float32 on the CPU."""
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path())
    return model


def load_tokenizer() -> "PreTrainedTokenizerBase":
    """Its tokenizer: one token a character, padding on the left, with a chat template."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path())
    return tokenizer
