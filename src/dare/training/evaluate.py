"""Evaluation during training: the rewards of training on held-out prompts, by level."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dare.curriculum.rollouts import Finish
from dare.evaluation.figures import Responses, by_group, mean_of, with_problems
from dare.training.collect import Collector
from dare.training.prompts import PromptStore
from dare_decoder import Sampling


def evaluate_policy(
    collector: Collector,
    store: PromptStore | Mapping[str, PromptStore],
    sampling: Sampling,
    *,
    samples: int,
    max_tokens: int,
    step: int,
) -> dict[str, Any]:
    """Accuracy, tokens and truncation, overall and by level; unscored responses are counted.

    Each prompt gets `samples` responses, which depend on `step`. `by_problem` has each problem's
    score and `problem_set` says which problems they are, so that runs can be compared problem by
    problem. Of a dictionary of data sets `by_set` has each one.
    """
    sets = store if isinstance(store, Mapping) else {"": store}
    answered = [
        _responses(collector, part, sampling, samples, max_tokens, step) for part in sets.values()
    ]
    found = [one for _, one in answered]
    sizes = [len(part) for part in sets.values()]
    first = np.cumsum([0, *sizes])
    responses = Responses(
        np.concatenate([one.problem_R + at for one, at in zip(found, first, strict=False)]),
        *(
            np.concatenate([getattr(one, name) for one in found])
            for name in ("score_R", "tokens_R", "truncated_R")
        ),
    )
    tables = [part.table for part in sets.values()]
    level = [table.levels[code] for table in tables for code in table.level_P.tolist()]
    ids = " ".join(name for table in tables for name in table.ids())
    named = {}
    if isinstance(store, Mapping):
        of_set = [name for name, size in zip(sets, sizes, strict=True) for _ in range(size)]
        named = {"by_set": by_group(responses, of_set, with_problems)}
        for name, (more, _) in zip(sets, answered, strict=True):
            named["by_set"][name] |= more
    return {
        **({} if named else answered[0][0]),
        **with_problems(responses),
        "problem_set": hashlib.sha256(ids.encode()).hexdigest()[:16],
        "by_level": by_group(responses, level, with_problems),
        **named,
    }


def flat_figures(result: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """The numbers of an evaluation for logs, those of each data set under its name."""
    parts = {prefix: result}
    for name, part in result.get("by_set", {}).items():
        parts[f"{prefix}_{name}"] = part
    return {
        f"{prefix}_{name}": value
        for prefix, part in parts.items()
        for name, value in part.items()
        if isinstance(value, (int, float))
    }


def _responses(
    collector: Collector,
    store: PromptStore,
    sampling: Sampling,
    samples: int,
    max_tokens: int,
    step: int,
) -> tuple[dict[str, Any], Responses]:
    """Means of the rewards, and the scored responses of all processes to one data set."""
    rows = np.repeat(np.arange(len(store)), samples)
    mine = collector.company.share(len(rows))
    prompts, key = [store.tokens(row) for row in range(len(store))], (step, "evaluate")
    generated = collector.generate(prompts, rows[mine], mine, max_tokens, key, sampling)
    scores = collector.judge(rows[mine], generated.tokens, store)
    everyone = collector.together(generated, scores)
    more = {"reward": mean_of(np.array(everyone.reward, dtype=float)), **everyone.means}
    return more, Responses.from_lists(
        rows.tolist(),
        everyone.success,
        [len(tokens) for tokens in everyone.tokens],
        everyone.finish_R == Finish.LENGTH,
    )
