"""Programs against their tests: what `dare_verify.code` offers, beside the other rewards."""

from dare_verify.code import *  # noqa: F403
from dare_verify.code import __all__ as __all__
