"""Programs that nobody has read: what `dare_sandbox` offers."""

from dare_sandbox import *  # noqa: F403
from dare_sandbox import __all__ as __all__
