"""What a name like `module:Class` in the settings stands for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dare.errors import InvalidInput


def imported(field: str, name: str, form: str = "module:Class") -> Any:
    """The object behind the name, or an error that names the field and why it is not there."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        fix = f"cannot be imported ({error}); write it as {form}, the module beside the recipe"
        raise InvalidInput(field, name, fix) from None
