"""`dare data` on the command line, and training on what it wrote."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dare.cli import app, main
from dare.data import read_rows
from dare.tasks import generate
from dare.training.recipe import build, load_recipe

SMALL = """
model: pocket
data: {data}
reward: {reward}
training:
  output_dir: run
  max_steps: 1
  per_device_train_batch_size: 32
  rollout_budget: 64
  max_completion_length: 32
  save_strategy: "no"
  report_to: none
curriculum: {{cold_start.references: 4}}
"""


def problems(path: Path, count: int = 64) -> None:
    rows = [
        {"question": p["prompt"], "gold": p["answer"], "difficulty": p["level"], "topic": "sums"}
        for p in generate(count=count, seed=0)
    ]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_a_prepared_file_trains(tmp_path, monkeypatch):
    problems(tmp_path / "mine.jsonl.gz")
    monkeypatch.chdir(tmp_path)
    words = ["--out", "mine.parquet", "--decontaminate", "none", "--take", "48", "--json"]
    done = CliRunner().invoke(app, ["data", "prepare", "mine.jsonl.gz", *words])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["rows"] == 48
    (tmp_path / "my.yaml").write_text(SMALL.format(data="mine.parquet", reward="boxed"))
    done = CliRunner().invoke(app, ["train", "my.yaml"])
    assert done.exit_code == 0, done.output
    step = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert step["step"] == 0
    text = (tmp_path / "run" / "selections.jsonl").read_text()
    ids = {name for line in text.splitlines() for name in json.loads(line)["prompt"]}
    assert ids
    assert ids <= {row["id"] for row in read_rows(tmp_path / "mine.parquet")}


def test_the_tests_of_a_prepared_file_reach_the_reward(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {
            "Task": f"Add {n} to it.",
            "io": json.dumps({"fn_name": "add", "inputs": [[1]], "outputs": [[n + 1]]}),
            "kind of": "easy",
            "completions": ["not what the policy wrote"],
        }
        for n in range(32)
    ]
    (tmp_path / "code.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--columns", "prompt=Task,tests=io", "--decontaminate", "none"]
    done = CliRunner().invoke(app, ["data", "prepare", "code.jsonl", "--out", "c.parquet", *words])
    assert done.exit_code == 0, done.output
    (tmp_path / "my.yaml").write_text(SMALL.format(data="c.parquet", reward="code"))
    trainer = build(load_recipe("my.yaml"))
    places = range(len(trainer.store))
    prompts = [trainer.store.records[place]["prompt"] for place in places]
    assert all("`add(...)`" in prompt for prompt in prompts)
    numbers = [int(prompt.split()[1]) for prompt in prompts]
    right = [f"```python\ndef add(x):\n    return x + {n}\n```" for n in numbers]
    wrong = [f"```python\ndef add(x):\n    return x - {n + 1}\n```" for n in numbers]
    columns = trainer.store.columns(places)
    for texts, reward in ((right, 1.0), (wrong, 0.0)):
        found = trainer.rewards(prompts, texts, [[] for _ in texts], columns).reward
        assert found == [reward] * len(rows)
    trainer.train()
    step = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert step["step"] == 0


BAD = {
    "wrong columns": (b'{"a": 1}\n', "line 1: prompt"),
    "empty": (b"", "has no rows"),
    "broken gzip": (gzip.compress(b'{"prompt": "a", "answer": "1"}\n' * 9)[:-12], "damaged"),
    "not utf-8": (b'{"prompt": "\xff", "answer": "1"}\n', "line 1.*UTF-8"),
    "9,000 digits": (b'{"prompt": "a", "answer": %s}\n' % (b"7" * 9000), "line 1: answer.*9,000"),
    "no object": (b"[1]\n", "row 1"),
    "nan": (b'{"prompt": "a", "answer": NaN}\n', "line 1: answer"),
    "cut off": (b'{"prompt": "a", "answer": "1"}\n{"prompt": "b"', "line 2.*cut off"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_line_and_exit_code_2(tmp_path, name, monkeypatch, capsys):
    content, message = BAD[name]
    ending = ".jsonl.gz" if name == "broken gzip" else ".jsonl"
    (tmp_path / f"in{ending}").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    words = ["dare", "data", "prepare", f"in{ending}", "--out", "out.parquet"]
    monkeypatch.setattr(sys, "argv", [*words, "--decontaminate", "none"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message, said)
    assert os.listdir(tmp_path) == [f"in{ending}"]


def test_inspect_shows_and_counts(tmp_path):
    problems(tmp_path / "mine.jsonl.gz")
    path = str(tmp_path / "mine.jsonl.gz")
    done = CliRunner().invoke(app, ["data", "inspect", path])
    assert done.exit_code == 0, done.output
    for words in ("64 rows", "columns: question, gold", "level", "characters of the prompt"):
        assert words in done.output
    figures = json.loads(CliRunner().invoke(app, ["data", "inspect", path, "--json"]).output)
    assert figures["rows"] == 64
    assert sum(figures["levels"].values()) == 64
    assert figures["missing"]["solution"] == 64
    assert len(figures["examples"]) == 3
    (tmp_path / "bad.jsonl").write_text(
        '{"prompt": "a [b]\\u001b[2J", "answer": "1"}\n{"prompt": 3}\n'
    )
    done = CliRunner().invoke(app, ["data", "inspect", str(tmp_path / "bad.jsonl")])
    assert "1 cannot be used" in done.output
    (tmp_path / "odd.jsonl").write_text('{"Aufgabe": "a", "answer": "1"}\n')
    assert (
        "columns: Aufgabe, answer"
        in CliRunner().invoke(app, ["data", "inspect", str(tmp_path / "odd.jsonl")]).output
    )
    assert "a [b]" in done.output  # text, not markup
    assert "\x1b[2J" not in done.output


def test_columns_are_read_from_the_command_line(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "q", "gold": "1"}\n')
    words = ["data", "prepare", str(tmp_path / "in.jsonl"), "--decontaminate", "none"]
    out = ["--out", str(tmp_path / "out.jsonl")]
    done = CliRunner().invoke(app, [*words, *out, "--columns", "prompt=text, answer=gold"])
    assert done.exit_code == 0, done.output
    assert "1 rows" in done.output
    done = CliRunner().invoke(app, [*words, *out, "--columns", "prompt"])
    assert "field=column" in str(done.exception)
    done = CliRunner().invoke(app, [*words, *out, "--columns", "promt=text"])
    assert "did you mean 'prompt'" in str(done.exception)
    done = CliRunner().invoke(app, [*words, *out, "--data-dir", str(tmp_path / "no")])
    assert "no such folder" in str(done.exception)
