"""Checks in killable workers: what `dare_verify.pool` offers, beside the rewards.

The module that the workers run imports `serve` from `dare_verify.pool_server`.
"""

from dare_verify.pool import Reply, WorkerPool

__all__ = ["Reply", "WorkerPool"]
