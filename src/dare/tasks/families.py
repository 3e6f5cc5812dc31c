"""The families of problems: chains of one kind of step, modulo a prime below 100.

A step takes the running value x and one of eight operands k to the next value. (family, x, k) is
an elementary fact; there are about 2,100 of them, and every problem is a chain of such facts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Family:
    """One kind of step, x -> (factor x**power + shift) mod modulus, with the text it is written in.

    An operand k stands for the factor when `multiplies` is set and for the shift otherwise.
    """

    name: str
    modulus: int
    operands: tuple[int, ...]
    factor: int = 1
    power: int = 1
    multiplies: bool = False

    def apply(self, x: Ints, k: Ints) -> Ints:
        """The next running value, elementwise."""
        if self.multiplies:
            return x * k % self.modulus
        return (self.factor * x**self.power + k) % self.modulus

    def step(self, k: int) -> str:
        """What is written after the running value to apply operand `k`."""
        if self.multiplies:
            return f"*{k}"
        return f"^{self.power}+{k}" if self.power > 1 else f"*{self.factor}+{k}"

    def prompt(self, start: int, operands: Sequence[int]) -> str:
        """The whole chain as one expression, with the brackets that ordinary precedence needs."""
        nested = 0 if self.multiplies else len(operands) - 1
        steps = [self.step(k) for k in operands]
        body = (")" if nested else "").join(steps)
        return f"{'(' * nested}{start}{body} mod {self.modulus}"

    def chain(self, start: int, operands: Sequence[int], values: Sequence[int]) -> str:
        """The worked steps, each result being the start of the next: `38*7=72*5=69`."""
        parts = [f"{self.step(k)}={value}" for k, value in zip(operands, values, strict=True)]
        return f"{start}{''.join(parts)}"

    def values(self, start: int, operands: Sequence[int]) -> Iterator[int]:
        """The running value after every step."""
        x = start
        for k in operands:
            if self.multiplies:
                x = x * k % self.modulus
            else:
                x = (self.factor * x**self.power + k) % self.modulus
            yield x


@dataclass(frozen=True)
class Level:
    """The length of a level's chains and which operands they use: places `low` to `high - 1`."""

    steps: int
    low: int
    high: int

    @property
    def width(self) -> int:
        """How many operands there are to choose from."""
        return self.high - self.low


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("product", 97, tuple(range(2, 10)), multiplies=True),
        Family("horner", 89, tuple(range(1, 9)), factor=7),
        Family("square", 83, tuple(range(1, 9)), power=2),
    )
}

# Levels 1 and 2 are single facts of different operands, so that no problem has two levels.
LEVELS: dict[int, Level] = {
    1: Level(steps=1, low=0, high=3),
    2: Level(steps=1, low=3, high=6),
    3: Level(steps=2, low=0, high=6),
    4: Level(steps=3, low=0, high=8),
    5: Level(steps=4, low=0, high=8),
    6: Level(steps=5, low=0, high=8),
    7: Level(steps=6, low=0, high=8),
    8: Level(steps=7, low=0, high=8),
}
