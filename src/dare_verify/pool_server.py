"""What a module that workers run begins with; it is part of `dare_verify.pool`."""

from dare_verify.pool import Handler, serve

__all__ = ["Handler", "serve"]
