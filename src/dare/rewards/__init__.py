"""Verifiable rewards, in the style that TRL calls them: lists in, one number a rollout out."""

from dare.rewards.boxed import boxed_reward, last_boxed

__all__ = ["boxed_reward", "last_boxed"]
