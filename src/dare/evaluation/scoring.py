"""Scores of responses, by the reward functions of training."""

from __future__ import annotations

from collections.abc import Sequence

from dare.errors import require
from dare.evaluation.benchmark_file import check_options
from dare.evaluation.benchmarks import Benchmark
from dare.evaluation.problems import Problem
from dare.rewards.builtin import reward_named
from dare.rewards.calling import RewardFunction, Rewards


def _reward(item: Benchmark) -> RewardFunction:
    """The reward of training; a benchmark of programs may give its judge more time."""
    if not item.judge:
        return reward_named(item.reward)
    from dare.rewards.code import judge, make_code_reward

    check_options(f"benchmark {item.name}: judge", item.judge, make_code_reward, judge)
    return make_code_reward(**item.judge)


def check_scorer(item: Benchmark) -> None:
    """Raise now what would stop the scoring after everything has been generated."""
    _reward(item)
    if item.is_code:
        from dare.sandbox import open_sandbox

        open_sandbox("auto")


def score(
    item: Benchmark, problems: Sequence[Problem], responses: Sequence[Sequence[str]]
) -> list[list[float | None]]:
    """One score in [0, 1] a response, None where it could not be scored.

    Equal responses to one problem are scored once: at low temperatures many are.
    """
    require(len(problems) == len(responses), "responses", len(responses), "one list a problem")
    place: dict[tuple[int, str], int] = {}
    for row, texts in enumerate(responses):
        for text in texts:
            place.setdefault((row, text), len(place))
    if not place:
        return [[] for _ in responses]
    rows = [problems[row] for row, _ in place]
    names = sorted({name for problem in rows for name in problem.columns})
    scored = Rewards(_reward(item))(
        [problem.prompt for problem in rows],
        [text for _, text in place],
        [[] for _ in place],
        {name: [problem.columns.get(name) for problem in rows] for name in names},
    )
    values = scored.success
    for reward, value in zip(scored.reward, values, strict=True):
        fix = "a score of a benchmark must be in [0, 1]"
        require(reward is None or value is not None, f"reward {item.reward}", reward, fix)
    return [[values[place[row, text]] for text in texts] for row, texts in enumerate(responses)]
