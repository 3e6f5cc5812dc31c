"""Benchmarks are data: they load, and every gold is right against itself."""

from __future__ import annotations

import base64
import importlib.util
import json
import pickle
import zlib
from pathlib import Path
from types import ModuleType

import pytest
from eval_worlds import DATA, ROOT, needs_data, sums

from dare.errors import InvalidInput
from dare.evaluation.benchmarks import benchmark, benchmark_names, chosen, load_problems, unpack
from dare.evaluation.run import score
from dare.rewards.builtin import REWARDS
from dare.templates import template_names
from dare_sandbox import open_sandbox

WANTED = (
    *("gsm8k", "math500", "aime24", "aime25", "aime-amc", "minerva", "olympiadbench"),
    *("humaneval", "humaneval+", "mbpp", "mbpp+", "livecodebench"),
)
MATH = {
    **{"gsm8k": 1319, "math500": 500, "aime24": 30, "aime-amc": 113, "amc": 83},
    **{"amc23": 40, "minerva": 272},
}


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golds", ROOT / "benchmarks" / "eval_golds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_of_the_papers_are_there() -> None:
    assert set(WANTED) <= set(benchmark_names())
    for name in benchmark_names():
        item = benchmark(name)
        assert item.about
        assert item.rows
        assert item.reward in REWARDS
        assert item.template in template_names()


@needs_data
@pytest.mark.parametrize("name", MATH)
def test_math_sets_load_and_their_golds_are_right(bench: ModuleType, name: str) -> None:
    item = benchmark(name)
    problems = load_problems(item, DATA)
    assert len(problems) == item.rows == MATH[name]
    found = score(item, problems, [[bench.gold_response(item, one)] for one in problems])
    assert [one.id for one, value in zip(problems, found, strict=True) if value != [1.0]] == []
    wrong = score(item, problems, [[r"\boxed{no answer}"] for _ in problems])
    assert {value[0] for value in wrong} == {0.0}


@needs_data
@pytest.mark.parametrize(
    ("name", "rows", "every"),
    [
        ("humaneval", 164, 16),
        ("humaneval+", 164, 60),
        ("mbpp", 500, 60),
        ("livecodebench", 400, 50),
    ],
)
def test_code_sets_load_and_their_golds_pass(
    bench: ModuleType, name: str, rows: int, every: int
) -> None:
    try:
        open_sandbox("auto")
    except InvalidInput as error:
        pytest.skip(str(error))
    item = benchmark(name)
    problems = load_problems(item, DATA)
    assert len(problems) == item.rows == rows
    some = problems[::every]
    golds = [[bench.gold_response(item, one), "```python\npass\n```"] for one in some]
    assert score(item, some, golds) == [[1.0, 0.0]] * len(some)


@needs_data
def test_a_published_test_that_calls_the_wrong_function_is_repaired() -> None:
    tests = {
        one.id: one.columns["tests"][0] for one in load_problems(benchmark("humaneval+"), DATA)
    }
    assert "abs(_poly(*inp, candidate(*inp)))" in tests["HumanEval/32"]["code"]
    assert "def poly" in tests["HumanEval/32"]["helpers"]


def test_livecodebench_tests_are_unpacked_without_loading_a_pickle() -> None:
    private = json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}])
    packed = base64.b64encode(zlib.compress(pickle.dumps(private))).decode()
    row = {"id": "x", "public_test_cases": "[]", "private_test_cases": packed}
    assert unpack(row, "row 1")["tests"] == json.loads(private)
    hostile = pickle.dumps(Path("a"))  # an object, not a string
    row["private_test_cases"] = base64.b64encode(zlib.compress(hostile)).decode()
    with pytest.raises(InvalidInput, match="row 1 = 'x': the tests cannot be unpacked"):
        unpack(row, "row 1")


def test_names_are_checked() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'math500'"):
        benchmark("math-500")
    with pytest.raises(InvalidInput, match="no such file"):
        benchmark("nowhere.yaml")
    with pytest.raises(InvalidInput, match="gsm8k is named twice"):
        chosen("gsm8k,math500,gsm8k")
    with pytest.raises(InvalidInput, match="name some of"):
        chosen(" , ")


def test_a_missing_file_is_named_with_where_it_could_come_from(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"math500/test'.* is missing .*HuggingFaceH4/MATH-500"):
        load_problems(benchmark("math500"), tmp_path)
    with pytest.raises(InvalidInput, match="--data-dir"):
        load_problems(benchmark("math500"), tmp_path / "absent")


def test_without_a_network_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(InvalidInput, match=r"no network.*minerva_math/test.jsonl.*--data-dir"):
        load_problems(benchmark("minerva"))


def test_ones_own_benchmark(tmp_path: Path) -> None:
    problems = load_problems(sums(tmp_path, 5))
    assert [(one.id, one.level, one.gold) for one in problems[:2]] == [
        ("s0", "1", "1"),
        ("s1", "2", "3"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parts: [{fil: x}]", "did you mean 'file'"),
        ("part: []", "did you mean 'parts'"),
        ("parts: 3", "must be a list of mappings"),
        ("parts: [{keep: {a: b}}]", "needs a hub, a file or tasks"),
        ("[1, 2]", "must be a mapping"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_definition_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        benchmark(str(path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"id": "s0", "problem": "q", "answer": "1"}', "s0.*another row has this id"),
        ('{"id": "x", "problem": "q"}', "line 4: answer"),
        ('{"id": "x", "answer": "1"}', "line 4: prompt"),
        ('{"id": "x", "problem": 3, "answer": "1"}', "line 4: problem"),
        ('{"id": "x", "problem": "q", "answer": ' + "9" * 5000 + "}", "line 4: answer"),
        ('{"id": "x", ', "line 4"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: str, message: str) -> None:
    item = sums(tmp_path, 3)
    with open(tmp_path / "sums.jsonl", "a") as file:
        file.write(row + "\n")
    with pytest.raises(InvalidInput, match=message):
        load_problems(item)


HUB: dict[str, list[dict[str, object]]] = {
    "AI-MO/aimo-validation-aime": [
        {"id": n, "problem": f"p{n}", "solution": "s", "answer": "7", "url": f"x/{year}_AIME_I"}
        for n, year in ((60, 2023), (61, 2024), (62, 2024))
    ],
    "AI-MO/aimo-validation-amc": [
        {"id": n, "problem": f"q{n}", "answer": 142.0, "url": "x"} for n in (60, 61)
    ],
    "Hothan/OlympiadBench": [
        {
            **{"id": 1606, "question": "Find x.", "solution": ["one way", "another"]},
            **{"final_answer": ["$2$"], "subfield": "Algebra", "is_multiple_answer": False},
        }
    ],
    "evalplus/mbppplus": [
        {
            **{
                "task_id": 2,
                "code": "def f(x):\n    return x",
                "prompt": "Write f.",
                "test_imports": [],
            },
            **{"test_list": ["assert f(1) == 1"], "test": "import math\nassert f(1) == 1"},
        }
    ],
    "openai/openai_humaneval": [
        {
            **{"task_id": "HumanEval/0", "prompt": "from typing import List\ndef g(x: int):\n"},
            **{"canonical_solution": "    return x\n", "entry_point": "g"},
            "test": "def check(candidate):\n    assert candidate(1) == 1\n",
        }
    ],
    "openai/gsm8k": [{"question": "How many?", "answer": "2+2=<<2+2=4>>4\n#### 4"}],
    "HuggingFaceH4/MATH-500": [
        {
            **{"problem": "p", "solution": r"\boxed{5}", "answer": "5", "subject": "Algebra"},
            **{"level": 2, "unique_id": "test/algebra/1.json"},
        }
    ],
    "EleutherAI/hendrycks_math": [
        {"problem": "p", "level": "Level 4", "type": "Geometry", "solution": r"so \boxed{\pi}"}
    ],
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows as the hub's data sets have them."""

    def load(path: str, **_: object) -> list[dict[str, object]]:
        return HUB[path]

    monkeypatch.setattr("datasets.load_dataset", load)


@pytest.mark.usefixtures("hub")
def test_columns_of_the_hub_are_understood() -> None:
    both = load_problems(benchmark("aime-amc"))
    assert [one.id for one in both] == ["AIME 61", "AIME 62", "AMC 60", "AMC 61"]
    assert [one.gold for one in both] == ["7", "7", "142.0", "142.0"]
    olympiad = load_problems(benchmark("olympiadbench"))[0]
    assert (olympiad.id, olympiad.gold, olympiad.subject) == ("1606", "$2$", "Algebra")
    math = load_problems(benchmark("math"))
    assert len(math) == 7
    assert (math[0].gold, math[0].level, math[0].subject) == (r"\pi", "4", "Geometry")
    one = load_problems(benchmark("math500"))[0]
    assert (one.id, one.level, one.gold) == ("test/algebra/1.json", "2", "5")
    assert load_problems(benchmark("gsm8k"))[0].gold == "4"
    plus = load_problems(benchmark("mbpp+"))[0]
    assert plus.prompt.endswith("```python\nassert f(1) == 1\n```")
    assert plus.columns["tests"][0]["code"].startswith("import math")
    assert plus.solution == "def f(x):\n    return x"
    human = load_problems(benchmark("humaneval"))[0]
    assert human.solution == "from typing import List\ndef g(x: int):\n    return x\n"
    assert human.columns["tests"][0]["entry_point"] == "g"
    assert human.columns["tests"][0]["prelude"] == "from typing import List"
