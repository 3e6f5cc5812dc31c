"""The command `dare`, called as a user calls it."""

import dataclasses
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

import dare
from dare import CurriculumConfig, cli
from dare.config import load_preset, preset_names


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `dare ARGS` in this process: (exit code, stdout, stderr)."""

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dare", *args])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def dotted_fields(kind: type, path: str = "") -> Iterator[str]:
    for item in dataclasses.fields(kind):
        yield f"{path}{item.name}"
        if dataclasses.is_dataclass(item.default_factory):
            yield from dotted_fields(item.default_factory, f"{path}{item.name}.")


def test_version_is_that_of_the_package(run):
    assert run("--version") == (0, f"dare {dare.__version__}\n", "")


def test_help_says_what_it_is_and_shows_examples(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "Difficulty-adaptive reinforcement learning" in out
    assert "dare presets paper" in out


def test_no_arguments_show_the_help(run):
    _, out, err = run()
    assert "dare presets paper" in out + err


def test_list_names_every_preset(run):
    code, out, _ = run("presets")
    assert code == 0
    listed = {line.split(maxsplit=1)[0] for line in out.splitlines() if not line.startswith(" ")}
    assert set(preset_names()) <= listed


def test_every_preset_has_a_summary(run):
    code, out, _ = run("presets", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["name"] for row in rows] == preset_names()
    assert all(row["summary"] for row in rows)
    assert all(row["changes"] == load_preset(row["name"]) for row in rows)


@pytest.mark.parametrize("name", preset_names())
def test_printed_yaml_reads_back_as_the_preset(run, name):
    code, out, _ = run("presets", name)
    assert code == 0
    assert CurriculumConfig.from_dict(yaml.safe_load(out)) == CurriculumConfig.preset(name)


@pytest.mark.parametrize("name", preset_names())
def test_printed_json_reads_back_as_the_preset(run, name):
    code, out, _ = run("presets", name, "--json")
    assert code == 0
    settings = json.loads(out)["settings"]
    assert CurriculumConfig.from_dict(settings) == CurriculumConfig.preset(name)


def test_every_field_is_explained(run):
    docs = json.loads(run("presets", "dare", "--json")[1])["docs"]
    unexplained = [name for name in dotted_fields(CurriculumConfig) if not docs.get(name)]
    assert unexplained == []


def test_a_field_with_a_new_default_keeps_its_explanation(run):
    docs = json.loads(run("presets", "dare", "--json")[1])["docs"]
    assert docs["easy.group_size"] == docs["medium.group_size"]


def test_settings_print_without_explanations_where_there_is_no_source(run, monkeypatch):
    def missing(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", missing)
    code, out, _ = run("presets", "paper")
    assert code == 0
    assert CurriculumConfig.from_dict(yaml.safe_load(out)) == CurriculumConfig.preset("paper")


def test_only_changed_values_name_their_default(run):
    marked = [line for line in run("presets", "dare")[1].splitlines() if "# default:" in line]
    assert [line.split(":")[0].strip() for line in marked] == ["thin_below"]
    marked = [line for line in run("presets", "paper")[1].splitlines() if "# default:" in line]
    assert any(line.startswith("tiers: true") for line in marked)


@pytest.mark.parametrize("name", ["papr", "[red]", "two\nlines", "x" * 300])
def test_a_bad_value_is_one_line_on_stderr_and_exit_code_2(run, name):
    code, out, err = run("presets", name)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("error: preset = ")


def test_an_error_on_a_terminal_is_red(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31m" in run("presets", "papr")[2]


def test_a_misspelt_preset_gets_the_nearest_one(run):
    assert "did you mean 'paper'?" in run("presets", "papr")[2]


def test_python_dash_m_is_the_same_command():
    command = [sys.executable, "-m", "dare", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"dare {dare.__version__}\n"
