"""What the report says is what the run did."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from dare.curriculum.landscape import BINS, FOLLOWED, landscape_record, tiers_of
from dare.errors import InvalidInput
from dare.report.blocks import Axes, binned, duration, numbers, percent, short, thinned
from dare.report.document import content, embedded
from dare.report.sections.comparison import method_names
from dare.report.sections.estimator import binomial_deviation
from dare.report.sections.rollouts import choose
from dare.runs.found import find_runs
from dare.runs.reader import RunData, read_lines, read_run
from dare.text import legible


def read(folder: Path) -> RunData:
    return read_run(find_runs([str(folder)])[0])


def blocks(shown: dict[str, Any], name: str) -> dict[str, Any]:
    section = next(one for one in shown["sections"] if one["id"] == name)
    held = section.get("blocks") or section["by_run"][0]
    return {block.get("id", block["kind"]): block for block in held}


@pytest.fixture(scope="module")
def shown(run: Path) -> dict[str, Any]:
    return content([read(run)])


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text("utf-8").splitlines()]


# --- the landscape --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 4097])
def test_a_landscape_record_gives_the_tiers_back(count: int) -> None:
    rng = np.random.default_rng(count)
    difficulty, tier = rng.random(count), rng.integers(0, 3, count).astype(np.uint8)
    record = json.loads(json.dumps(landscape_record(7, difficulty, tier)))
    assert record["step"] == 7
    assert sum(record["histogram"]) == count
    assert tiers_of(record).tolist() == tier.tolist()


def test_a_landscape_record_stays_small_however_many_prompts_there_are() -> None:
    rng = np.random.default_rng(0)
    record = landscape_record(0, rng.random(10**6), rng.integers(0, 3, 10**6).astype(np.uint8))
    assert sum(record["histogram"]) == 10**6
    assert len(tiers_of(record)) == FOLLOWED
    assert len(json.dumps(record)) < 24_000


def test_the_ends_of_the_scale_are_in_the_outer_bins() -> None:
    record = landscape_record(0, np.array([0.0, 1.0, 0.999]), np.zeros(3, np.uint8))
    assert record["histogram"] == [1] + [0] * (BINS - 2) + [2]


def test_heatmap_and_tiers_are_those_of_all_prompts(run: Path, shown) -> None:
    records = lines(run, "landscape.jsonl")
    found = blocks(shown, "landscape")
    heat = found["heatmap"]["traces"][0]
    assert len(heat["z"]) == BINS
    last = [row[-1] for row in heat["z"]]
    assert last == pytest.approx([n / 400 for n in records[-1]["histogram"]], abs=1e-4)
    share = [trace["y"][0] for trace in found["tiers-over-time"]["traces"]]
    counts = np.bincount(tiers_of(records[0]), minlength=3)
    assert share == pytest.approx((counts / 400).tolist(), abs=1e-4)


def test_moves_count_every_prompt_once(run: Path, shown) -> None:
    moves = blocks(shown, "landscape")["moves"]
    by_step = {record["step"]: tiers_of(record) for record in lines(run, "landscape.jsonl")}
    assert moves["steps"][0] == 1  # the page counts from 1, files from 0
    assert moves["steps"][-1] == 40
    for key, counts in moves["counts"].items():
        a, b = (by_step[moves["steps"][int(place)] - 1] for place in key.split("-"))
        expected = [int(((a == i) & (b == j)).sum()) for i in range(3) for j in range(3)]
        assert counts == expected


def test_without_a_landscape_the_drawn_prompts_are_shown(synthetic, tmp_path: Path) -> None:
    synthetic.synthesise(tmp_path / "old", steps=10, prompts=60, drawn=8, words=3)
    (tmp_path / "old" / "landscape.jsonl").unlink()
    found = blocks(content([read(tmp_path / "old")]), "landscape")
    assert "landscape.jsonl" in found["note"]["text"]
    moves = found["moves"]
    assert moves["states"][3] == "not drawn yet"
    drawn = lines(tmp_path / "old", "selections.jsonl")
    tier: dict[str, str] = {}
    for line in drawn:
        tier.update(zip(line["prompt"], line["tier"], strict=True))
    last = np.array(moves["counts"][f"0-{len(moves['steps']) - 1}"]).reshape(4, 4)
    names = list(tier.values())
    assert last.sum() == len(tier)
    assert last.sum(axis=0).tolist()[:3] == [names.count(n) for n in ("easy", "medium", "hard")]
    assert last[3].sum() == len(tier) - len(drawn[0]["prompt"])


# --- the estimate ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "size"), [(0.5, 8), (0.1, 4), (0.93, 16), (0.0, 8), (1.0, 3)])
def test_what_luck_alone_makes_of_a_perfect_prediction(rate: float, size: int) -> None:
    exact = sum(
        math.comb(size, k) * rate**k * (1 - rate) ** (size - k) * abs(k / size - rate)
        for k in range(size + 1)
    )
    got = binomial_deviation(np.array([rate]), np.array([float(size)]))
    assert got[0] == pytest.approx(exact, abs=1e-7)


def test_calibration_of_a_run_whose_estimate_is_true(shown) -> None:
    """The synthetic run fails as often as it predicts: most intervals hold the diagonal."""
    found = blocks(shown, "estimator")
    halves = [trace for trace in found["calibration"]["traces"] if "error_y" in trace]
    assert [trace["name"] for trace in halves] == ["first half", "second half"]
    assert sum(sum(trace["customdata"]) for trace in halves) == 40 * 32
    inside = []
    for trace in halves:
        error = trace["error_y"]
        for x, y, up, down in zip(
            trace["x"], trace["y"], error["array"], error["arrayminus"], strict=True
        ):
            inside.append(y - down - 0.01 <= x <= y + up + 0.01)
    assert np.mean(inside) > 0.75
    measured, luck = (np.mean(trace["y"]) for trace in found["error"]["traces"])
    assert measured == pytest.approx(luck, abs=0.02)


# --- axes and numbers -----------------------------------------------------------------------------


def test_axes_place_evaluations_between_steps(run: Path) -> None:
    data = read(run)
    axes = Axes([data])
    axes.at("e", data, np.array([0, 10, 40]), done=True)
    axes.at("s", data, np.array([0, 9, 39]))
    held = axes.to_dict()
    assert held["e"]["tokens"] == pytest.approx([0, data.tokens[9], data.tokens[39]], rel=1e-6)
    assert held["e"]["tokens"][1:] == held["s"]["tokens"][1:]
    recorded = [line["generated_tokens_total"] for line in data.evaluations if line["step"] == 10]
    assert held["e"]["tokens"][1] == pytest.approx(recorded[0], rel=1e-6)


def test_long_runs_are_thinned_to_means() -> None:
    values = np.arange(10_000.0)
    values[5] = np.nan
    edges = thinned(10_000, 1000)
    found = binned(values, edges)
    assert len(found) == 1000
    assert found[0] == pytest.approx((45 - 5) / 9)
    assert found[1] == pytest.approx(14.5)
    assert binned(values[:3], thinned(3, 1000)).tolist() == [0, 1, 2]


def test_numbers_are_written_for_people() -> None:
    assert [short(v) for v in (None, math.nan, 0.0, 3.0, 1234.0, 0.00123)] == [
        "-", "-", "0", "3", "1,234", "0.00123",
    ]  # fmt: skip
    assert (short(12_345_678.0), short(2.5e9)) == ("12.3 M", "2.5 G")
    assert (percent(0.1234), percent(None)) == ("12.3 %", "-")
    assert (duration(45), duration(600), duration(9000)) == ("45 s", "10 min", "2.5 h")
    assert numbers(np.array([1.234567, math.inf])) == [1.2346, None]


# --- texts ----------------------------------------------------------------------------------------


def test_text_is_made_legible_and_long_text_loses_its_middle() -> None:
    assert legible("a\x1b[0m\tb\n\u202ex\ud800") == "a␛[0m\tb\n⟨U+202E⟩x⟨U+D800⟩"
    text = legible("a" * 5000 + "z" * 5000, 3000)
    assert text.startswith("a" * 2000 + "\n[... 7,000 characters left out ...]\n")
    assert text.endswith("z" * 1000)


def test_embedded_json_is_ascii_without_markup() -> None:
    value = {"<k>": "</script>&\u2028\ud800\U0001f600 <!--"}
    text = embedded(value)
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == value
    with pytest.raises(ValueError, match="JSON"):
        embedded(math.nan)


def test_samples_are_chosen_evenly_from_every_kind() -> None:
    samples = [
        {"step": step, "tier": tier, "conditioning": "plain", "reward": float(right),
         "prompt": "p" * 100, "response": "r" * 900}
        for step in range(200) for tier in ("easy", "hard") for right in (0, 1)
    ]  # fmt: skip
    assert choose(samples, 10**7) == samples
    chosen = choose(samples, 48_000)
    assert len(chosen) == 40
    for tier in ("easy", "hard"):
        for right in (0.0, 1.0):
            steps = [s["step"] for s in chosen if (s["tier"], s["reward"]) == (tier, right)]
            assert len(steps) == 10
            assert (steps[0], steps[-1]) == (0, 199)


# --- evaluations, names ---------------------------------------------------------------------------


def test_benchmarks_of_dare_eval_are_shown_and_nonsense_is_passed_over(
    synthetic, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    synthetic.synthesise(folder, steps=3, prompts=30, drawn=8, words=3)
    part = {"accuracy": 0.5, "low": 0.4, "high": 0.6, "problems": 30, "tokens": 812.04,
            "truncated": 0.1, "pass_at_k": {"k": [1, 2, 4], "mean": [0.5, 0.6, None]}}  # fmt: skip
    held = {"mean_accuracy": 0.5, "benchmarks": {"aime24": part, "odd": {"accuracy": "x"}, "n": 3}}
    (folder / "eval.json").write_text(json.dumps(held))
    (folder / "sub").mkdir()
    (folder / "sub" / "eval.json").write_text("[1, 2]")
    found = blocks(content([read(folder)]), "evaluation")
    rows = {row[0]: row for row in found["benchmarks eval.json"]["rows"]}
    assert rows["aime24"][:6] == ["aime24", "50.0 %", "40.0 - 60.0 %", "30", "812.0", "10.0 %"]
    assert rows["odd"][1] == "-"
    assert found["pass-at-k eval.json"]["traces"][0]["y"] == [0.5, 0.6, None]


def test_runs_are_named_by_what_tells_them_apart(synthetic, tmp_path: Path) -> None:
    for name in ("a/seed-1", "a/seed-2", "b/seed-1"):
        seed = int(name[-1])
        synthetic.synthesise(tmp_path / name, steps=2, prompts=20, drawn=4, words=2, seed=seed)
    found = find_runs([str(tmp_path)])
    assert [one.name for one in found] == ["a/seed-1", "a/seed-2", "b/seed-1"]
    runs = [read_run(one) for one in found]
    # One preset, one seed twice: they cannot be told apart as seeds of a method.
    assert method_names(runs) == ["a/seed-1", "a/seed-2", "b/seed-1"]
    named = find_runs([f"x={tmp_path / 'a'}", f"y={tmp_path / 'b'}"])
    runs = [read_run(one) for one in named]
    assert method_names(runs) == ["x", "x", "y"]
    assert [run.name for run in runs] == ["a/seed-1", "a/seed-2", "y"]


# --- what is broken -------------------------------------------------------------------------------


@pytest.mark.parametrize("rest", ['{"step": 3, "lo', "{", '{"step": 3, "t": "\\', "\xc3"])
def test_a_line_that_is_still_being_written_is_passed_over(rest: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 2}\n' + rest.encode("latin-1"))
    assert read_lines(path) == [{"step": 2}]
    path.write_bytes(b'{"step": 2}\n{"step": 3}')
    assert read_lines(path) == [{"step": 2}, {"step": 3}]


@pytest.mark.parametrize(
    "bad",
    [b"{", b"", b"[1]", b'{"a": 1}', b'{"step": -1}', b'{"step": 1.5}', b'{"step": true}',
     b'{"step": 1e999}', b"\xff", b"[" * 100_000],
)  # fmt: skip
def test_a_broken_line_is_named(bad: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0}\n' + bad + b'\n{"step": 2}\n')
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl.*line 2 ") as caught:
        read(tmp_path)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("selections.jsonl", {"step": 0}),
        ("selections.jsonl", {"step": 0, "prompt": ["a"], "tier": ["odd"]}),
        ("selections.jsonl", {"step": 0, "prompt": ["a"], "tier": []}),
        ("selections.jsonl", {"step": 0, "prompt": ["a"], "tier": ["easy"], "difficulty": ["x"]}),
        ("selections.jsonl", {"step": 0, "prompt": ["a"], "tier": ["easy"], "difficulty": []}),
        ("landscape.jsonl", {"step": 0, "histogram": [1, 2]}),
        ("landscape.jsonl", {"step": 0, "histogram": [10**400] * BINS, "tiers": "", "followed": 1}),
        ("landscape.jsonl", {"step": 0, "histogram": [1] * BINS, "tiers": "eJwDAAAAAAE="}),
        ("landscape.jsonl", {"step": 0, "histogram": [1] * BINS, "tiers": "AA", "followed": 1}),
        ("landscape.jsonl", {"step": 0, "histogram": "x" * BINS, "tiers": "AA", "followed": 1}),
    ],
)
def test_records_that_make_no_sense_are_named(name: str, line: Any, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / name).write_text(json.dumps(line) + "\n")
    with pytest.raises(InvalidInput, match=rf"{name}.*line 1 "):
        content([read(tmp_path)])


def test_odd_values_in_metrics_are_no_reason_to_fail(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "reward": "high", "seconds": 3, "tokens": None, "loss": 10**400},
        {"step": 0, "reward": 10**400, "seconds": {"plan": "x"}, "generated_tokens_total": None},
        {"step": 0, "reward": 0.5, "memory_mb": True, "seconds": {"plan": 10**400, "train": 1}},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text)
    (tmp_path / "eval.jsonl").write_text('{"step": 0, "by_level": 3, "accuracy": "x"}\n')
    (tmp_path / "samples.jsonl").write_text('{"step": 0, "tier": 7, "prompt": {"a": 1}}\n')
    data = read(tmp_path)
    assert [line["step"] for line in data.metrics] == [0, 1]  # the later line of a step counts
    json.dumps(content([data]), allow_nan=False)


def test_a_long_run_makes_a_small_page(tmp_path: Path) -> None:
    metrics = (
        {"step": step, "reward": step % 7 / 7, "seconds": {"train": 1}, "tier_easy": 3}
        for step in range(20_000)
    )
    samples = (
        {"step": step, "tier": "easy", "reward": step % 2, "tokens": 9, "prompt": "p",
         "response": f"{step} " * 700}
        for step in range(5_000)
    )  # fmt: skip
    for name, records in (("metrics", metrics), ("samples", samples)):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text(text)
    assert len(embedded(content([read(tmp_path)]))) < 4_000_000


def test_the_gold_answer_stands_beside_a_rollout(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.train()
    shown = content([read_run(one) for one in find_runs([str(tmp_path)])])
    rows = blocks(shown, "rollouts")["samples"]["rows"]
    answers = {record["prompt"]: record["answer"] for record in trainer.store.records}
    assert rows
    assert all(row["answer"] == answers[row["prompt"]] for row in rows)
    assert {row["step"] for row in rows} == {1}


def rewritten(run: Path, **figures: Any) -> RunData:
    """The run with other figures in each line of its metrics."""
    held = [json.dumps({**line, **figures}) for line in lines(run, "metrics.jsonl")]
    (run / "metrics.jsonl").write_text("\n".join(held) + "\n", "utf-8")
    return read(run)


def test_a_run_without_any_reward_says_so_first(synthetic, tmp_path: Path) -> None:
    synthetic.synthesise(tmp_path / "run", steps=4, prompts=40, drawn=8, words=5)
    assert "note" not in blocks(content([read(tmp_path / "run")]), "overview")
    shown = content([rewritten(tmp_path / "run", reward=0.0)])
    assert "Every reward of run is 0" in blocks(shown, "overview")["note"]["text"]


def test_each_of_several_reward_functions_has_its_curve(synthetic, tmp_path: Path) -> None:
    synthetic.synthesise(tmp_path / "run", steps=4, prompts=40, drawn=8, words=5)
    shown = content([rewritten(tmp_path / "run", **{"rewards/a/mean": 0.3})])
    assert "curve-rewards/a/mean" not in blocks(shown, "curves")  # one is the reward itself
    shown = content([rewritten(tmp_path / "run", **{"rewards/b/mean": 0.4})])
    found = blocks(shown, "curves")
    assert list(found)[1:4] == ["curve-reward", "curve-rewards/a/mean", "curve-rewards/b/mean"]
    assert found["curve-rewards/b/mean"]["title"] == "Reward of b"
