"""One evaluation: responses, scores, records, figures; a run that was killed goes on.

OUT/settings.json   what the records were made with
OUT/records.jsonl   one line a problem, written as they come
OUT/eval.json       the figures
OUT/eval.md         the same as tables
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput, require, suggest
from dare.evaluation.benchmarks import Benchmark, Problem, fingerprint, load_problems
from dare.evaluation.figures import markdown, summarise
from dare.evaluation.records import FIGURES, TABLES, Record, RecordFile, by_benchmark, claimed
from dare.evaluation.responses import restate
from dare.evaluation.sources import Source
from dare.rewards.builtin import reward_named
from dare.rewards.calling import RewardFunction, Rewards
from dare.runs.files import read_json, write_json, write_whole

Progress = Callable[[str, int, int], None]
"""Called with a benchmark's name, its problems done and all of its problems."""


def evaluate(
    items: Sequence[Benchmark],
    source: Source,
    folder: str | Path,
    settings: Mapping[str, Any],
    *,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Evaluate and write; what the folder already holds is kept and not made again.

    `settings` are what responses depend on: a folder begun with others is refused. `limit` takes
    the first problems of each benchmark; a later call may raise it. `overwrite` begins anew, once
    it is known that there is something to evaluate.
    """
    path = Path(folder)
    # Everything that can be wrong with the data or the judge shows before the first response.
    loaded = [(item, load_problems(item, data_dir)) for item in items]
    answered, within = 0, 0
    for item, problems in loaded:
        check_scorer(item)
        places, _ = source.begin(item, problems)
        answered += len(places)
        within += len(_first(places, limit))
    if not within:
        fix = "there is no response to any of their problems; are ids or problem texts the same?"
        if answered:
            fix = (
                f"there are responses to {answered} of their problems, to none of the first {limit}"
            )
            raise InvalidInput("--limit", limit, fix)
        raise InvalidInput("--benchmarks", [item.name for item in items], fix)
    data = {item.name: fingerprint(item, problems) for item, problems in loaded}
    with claimed(path, settings, data, overwrite=overwrite):
        file = RecordFile(path)
        done = by_benchmark(file.read())
        chosen: dict[str, set[str]] = {}
        notes: dict[str, dict[str, Any]] = {}
        for item, problems in loaded:
            places, form = source.begin(item, problems)
            wanted = _first(places, limit)
            there = {record["id"] for record in done.get(item.name, [])}
            left = [place for place in wanted if problems[place].id not in there]
            _answer(item, problems, left, form, source, file, len(wanted), progress)
            chosen[item.name] = {problems[place].id for place in wanted}
            notes[item.name] = _notes(item, problems, wanted, limit, form)
        return write_figures(path, settings, chosen, notes)


def _first(places: Sequence[int], limit: int | None) -> list[int]:
    return [place for place in places if limit is None or place < limit]


def write_figures(
    folder: Path,
    settings: Mapping[str, Any],
    chosen: Mapping[str, set[str]],
    notes: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    """eval.json and eval.md, from all records but those of problems not chosen now."""
    from dare import __version__

    path = folder / FIGURES
    before: Any = {}
    # Only notes on benchmarks of earlier calls are taken from it: a damaged one is no loss.
    with suppress(InvalidInput, TypeError, KeyError):
        before = read_json(path)["benchmarks"]
    before = before if isinstance(before, dict) else {}
    found: dict[str, Any] = {}
    for name, records in by_benchmark(RecordFile(folder).read()).items():
        kept = [r for r in records if name not in chosen or r["id"] in chosen[name]]
        note = before.get(name)
        note = note if isinstance(note, dict) else {}
        earlier = {key: note.get(key) for key in ("form", "expected", "missing")}
        if kept:
            found[name] = {**(notes.get(name) or earlier), **summarise(kept)}
    scored = [one["accuracy"] for one in found.values() if one["accuracy"] is not None]
    figures = {
        "dare": __version__,
        "settings": dict(settings),
        # The paper's "Overall": every benchmark counts the same.
        "mean_accuracy": sum(scored) / len(scored) if scored else None,
        "benchmarks": found,
    }
    write_json(path, figures)
    write_whole(folder / TABLES, markdown(figures))
    return figures


def _answer(
    item: Benchmark,
    problems: Sequence[Problem],
    left: list[int],
    form: str,
    source: Source,
    file: RecordFile,
    total: int,
    progress: Progress | None,
) -> None:
    """Respond to, score and write down the problems that are left, some at a time."""
    step = source.step
    for start in range(0, len(left), step):
        if progress is not None:
            progress(item.name, total - len(left) + start, total)
        places = left[start : start + step]
        asked = [problems[place] for place in places]
        made = source.take(places, asked)
        texts = [
            [restate(form, problem, text) for text in fields["responses"]]
            for problem, fields in zip(asked, made, strict=True)
        ]
        scores = score(item, asked, texts)
        file.append(
            _record(item, problem, fields, values)
            for problem, fields, values in zip(asked, made, scores, strict=True)
        )
    if progress is not None:
        progress(item.name, total, total)


def _record(
    item: Benchmark, problem: Problem, fields: dict[str, Any], scores: list[float | None]
) -> Record:
    # A prompt that did not fit was not answered, whatever a reward says of an empty text.
    scores = [
        0.0 if why == "prompt" else value
        for value, why in zip(scores, fields["finish"], strict=True)
    ]
    return {
        "benchmark": item.name,
        "id": problem.id,
        "level": problem.level,
        "subject": problem.subject,
        "prompt": problem.prompt,
        "gold": problem.gold,
        **fields,
        "scores": scores,
    }


def _notes(
    item: Benchmark, problems: Sequence[Problem], wanted: list[int], limit: int | None, form: str
) -> dict[str, Any]:
    """What a reader of the figures must know of how they came about."""
    asked = len(problems) if limit is None else min(limit, len(problems))
    return {"form": form, "expected": item.rows, "missing": asked - len(wanted)}


def _reward(item: Benchmark) -> RewardFunction:
    """The reward of training; a benchmark of programs may give its judge more time."""
    if not item.judge:
        return reward_named(item.reward)
    from dare_verify.code import judge, make_code_reward

    both = [*signature(make_code_reward).parameters.values(), *signature(judge).parameters.values()]
    known = [one.name for one in both if one.kind is not one.VAR_KEYWORD]
    for key, value in item.judge.items():
        require(key in known, f"benchmark {item.name}: judge.{key}", value, suggest(key, known))
    return make_code_reward(**item.judge)


def check_scorer(item: Benchmark) -> None:
    """Raise now what would stop the scoring after everything has been generated."""
    _reward(item)
    if item.is_code:
        from dare_sandbox import open_sandbox

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
