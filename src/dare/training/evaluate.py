"""Evaluation during training: the rewards of training on held-out prompts, by level."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dare.curriculum.rollouts import Finish
from dare.evaluation.figures import Responses, by_group, mean_of, with_problems
from dare.policy.generate import GenerationRequest
from dare.policy.sampling import Sampling
from dare.training.prompts import PromptStore

if TYPE_CHECKING:
    from dare.training.trainer import DareTrainer


def evaluate_policy(
    trainer: DareTrainer, store: PromptStore | Mapping[str, PromptStore]
) -> dict[str, Any]:
    """Accuracy, tokens and truncation, overall and by level; unscored responses are counted.

    `by_problem` has each problem's score and `problem_set` says which problems they are, so that
    runs can be compared problem by problem. Of a dictionary of data sets `by_set` has each one.
    """
    sets = store if isinstance(store, Mapping) else {"": store}
    answered = [_responses(trainer, part) for part in sets.values()]
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
    if isinstance(store, Mapping):
        for name, (more, _) in zip(sets, answered, strict=True):
            named["by_set"][name] |= more
    return {
        **({} if named else answered[0][0]),
        **with_problems(responses),
        "problem_set": hashlib.sha256(ids.encode()).hexdigest()[:16],
        "by_level": by_group(responses, level, with_problems),
        **named,
    }


def _responses(trainer: DareTrainer, store: PromptStore) -> tuple[dict[str, Any], Responses]:
    """Means of the rewards, and the scored responses of all processes to one data set."""
    args = trainer.args
    rows = np.repeat(np.arange(len(store)), args.eval_samples)
    mine = trainer.collector.company.share(len(rows))
    budget = trainer.settings.max_tokens
    greedy = args.eval_temperature == 0.0
    sampling = Sampling(args.eval_temperature, 1.0 if greedy else args.top_p, args.top_k)
    request = GenerationRequest(
        prompts=[store.tokens(row) for row in range(len(store))],
        prompt_R=rows[mine],
        max_tokens_R=np.full(len(mine), budget, dtype=np.int64),
        noise_R=mine,
        seed=args.seed,
        step=trainer.state.global_step,
        purpose="evaluate",
    )
    generated = trainer.policy.generate(request, sampling)
    scores = trainer.collector.judge(rows[mine], generated.tokens, store)
    everyone = trainer.collector.together(generated, scores)
    more = {"reward": mean_of(np.array(everyone.reward, dtype=float)), **everyone.means}
    return more, Responses.from_lists(
        rows.tolist(),
        everyone.success,
        [len(tokens) for tokens in everyone.tokens],
        everyone.finish_R == Finish.LENGTH,
    )
