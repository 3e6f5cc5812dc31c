"""Mathematical answers: what `dare_verify.math` offers, beside the other rewards."""

from dare_verify.math import *  # noqa: F403
from dare_verify.math import __all__ as __all__
