"""Drawing problems: deterministic in the seed, without repeats while a level has fresh problems."""

from collections.abc import Iterable
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from dare.errors import require
from dare.tasks.families import FAMILIES, LEVELS, Family, Ints, Level

Split = Literal["train", "test"]

_TEST_SHARE = 5  # one problem in five, by hash, belongs to the test split
_SPLITS = ("train", "test")


class Problem(TypedDict):
    """One problem; `solution` is a worked one that ends in the boxed answer."""

    prompt: str
    answer: str
    level: int
    source: str
    solution: str


def generate(
    count: int,
    seed: int,
    levels: Iterable[int] = range(1, 9),
    families: Iterable[str] | None = None,
    split: Split = "train",
) -> list[Problem]:
    """`count` problems in random order, spread evenly over `levels` and `families`.

    No problem occurs in both splits, whatever the seeds. Within a call none repeats until the
    problems of its level and family are used up (level 1 has about 210 of each for training).
    """
    chosen_levels = sorted(set(levels))
    chosen = list(FAMILIES) if families is None else sorted(set(families))
    require(0 <= count <= 10**7, "count", count, "ask for 0 to 10,000,000 problems")
    require(seed >= 0, "seed", seed, "must not be negative")
    require(split in _SPLITS, "split", split, f"use one of {_SPLITS}")
    known = bool(chosen) and set(chosen) <= set(FAMILIES)
    require(known, "families", chosen, f"choose from {list(FAMILIES)}")
    known = bool(chosen_levels) and set(chosen_levels) <= set(LEVELS)
    require(known, "levels", chosen_levels, f"choose from {list(LEVELS)}")

    rng = np.random.default_rng([seed, _SPLITS.index(split)])
    cells = [(level, name) for level in chosen_levels for name in chosen]
    shares = np.full(len(cells), count // len(cells))
    shares[rng.permutation(len(cells))[: count % len(cells)]] += 1
    problems: list[Problem] = []
    for (level, name), share in zip(cells, shares.tolist(), strict=True):
        family = FAMILIES[name]
        start, operands = _draw(family, LEVELS[level], share, split, rng)
        problems += _write(family, level, start, operands)
    return [problems[i] for i in rng.permutation(count).tolist()]


def _write(family: Family, level: int, start_P: Ints, operands_PS: Ints) -> list[Problem]:
    """The text of a cell's problems; values are computed a column at a time."""
    values_PS = np.empty_like(operands_PS)
    x = start_P
    for step in range(operands_PS.shape[1]):
        x = values_PS[:, step] = family.apply(x, operands_PS[:, step])
    rows = zip(start_P.tolist(), operands_PS.tolist(), values_PS.tolist(), strict=True)
    return [
        Problem(
            prompt=family.prompt(start, operands),
            answer=str(values[-1]),
            level=level,
            source=family.name,
            solution=f"{family.chain(start, operands, values)}\n\\boxed{{{values[-1]}}}",
        )
        for start, operands, values in rows
    ]


def _draw(
    family: Family, level: Level, count: int, split: Split, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Starts and operands of `count` problems; a problem is a number below `size`, mixed radix."""
    size = (family.modulus - 1) * level.width**level.steps
    if (
        size <= 16 * count
    ):  # few enough to list: then repeats can be put off for as long as possible
        pool = rng.permutation(_of_split(np.arange(size), family, level, split))
        codes = np.tile(pool, -(-count // len(pool)))[:count]
    else:
        codes = np.empty(0, np.int64)
        while len(codes) < count:
            fresh = rng.integers(0, size, 2 * count * (_TEST_SHARE if split == "test" else 1) + 16)
            codes = np.concatenate([codes, _of_split(fresh, family, level, split)])
            _, first = np.unique(codes, return_index=True)
            codes = codes[np.sort(first)]
        codes = codes[:count]
    return _decode(codes, family, level)


def _decode(codes: Ints, family: Family, level: Level) -> tuple[Ints, Ints]:
    """The start (1 to modulus - 1: zero would stay zero in a product) and the operands."""
    start = 1 + codes % (family.modulus - 1)
    rest = codes // (family.modulus - 1)
    places = level.width ** np.arange(level.steps)
    index = level.low + rest[:, None] // places[None, :] % level.width
    return start, np.asarray(family.operands, np.int64)[index]


def _of_split(codes: Ints, family: Family, level: Level, split: Split) -> Ints:
    """The codes whose problem falls into `split`, by a hash of what the problem says.

    Not of the code: that would let a problem change sides when the levels are redefined.
    """
    start, operands = _decode(codes, family, level)
    word = np.full(len(codes), family.modulus, np.uint64)
    for column in (start, *operands.T):
        word = _mixed(word ^ column.astype(np.uint64))
    test = word % np.uint64(_TEST_SHARE) == 0
    return codes[test == (split == "test")]


def _mixed(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser: every bit of the result depends on every bit of `word`."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
