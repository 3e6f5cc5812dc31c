r"""Embedded problems with known answers: made from a seed, checked exactly, no download.

    from dare import tasks

    train = tasks.generate(4096, seed=0)
    test = tasks.generate(512, seed=0, split="test")
    tasks.reward(r"38*7=72*5=69" + "\n" + r"\boxed{69}", train[0]["answer"])

Each problem is a chain of elementary steps modulo a prime. Whoever knows the few thousand
elementary facts can solve every problem, so what is learnt on one problem helps on the others.
"""

from dare.tasks.checking import reward
from dare.tasks.families import FAMILIES, LEVELS, Family, Level
from dare.tasks.sampling import Problem, generate

__all__ = ["FAMILIES", "LEVELS", "Family", "Level", "Problem", "generate", "reward"]
