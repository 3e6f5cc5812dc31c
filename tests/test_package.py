"""What holds for the package as a whole: what it imports, what it ships, what its README says."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path

import pytest

import dare
from dare.config import preset_names

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "dare"
HEAVY = ("torch", "transformers", "trl", "datasets", "scipy", "pandas")


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Absolute names of all modules that a file imports, at any depth of its code."""
    package = ("dare", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base == "dare":  # `from dare import x` may name a module
                yield from (f"dare.{alias.name}" for alias in node.names)
            else:
                yield base


def belongs(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def file_name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("module", ["dare", "dare.curriculum", "dare.cli"])
def test_importing_loads_no_heavy_library(module):
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("path", modules(PACKAGE / "curriculum"), ids=file_name)
def test_the_curriculum_depends_on_nothing_above_it(path):
    ours = {name for name in imported(path) if belongs(name, ("dare",))}
    allowed = ("dare.curriculum", "dare.config", "dare.errors")
    assert {name for name in ours if not belongs(name, allowed)} == set()


@pytest.mark.parametrize("path", modules(PACKAGE), ids=file_name)
def test_nothing_is_pickled(path):
    picklers = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve")
    assert [name for name in imported(path) if belongs(name, picklers)] == []


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == dare.__version__ == metadata.version("dare-rl")
    assert f"## [{dare.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_constraints_pin_every_dependency_but_those_they_name_as_left_out():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["report"], *extras["dev"]]
    names = {re.split(r"[\[<>=!~; ]", each)[0].lower() for each in wanted}
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins), "exact, without local tags"
    assert names <= {pin.split("==")[0].lower() for pin in pins}


def test_presets_and_type_marker_are_shipped():
    shipped = resources.files("dare")
    assert {"dare", "paper", "grpo"} <= set(preset_names())
    assert shipped.joinpath("py.typed").is_file()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    kept = {path for glob in settings["package-data"]["dare"] for path in PACKAGE.glob(glob)}
    data = {
        path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path for path in data if path.suffix != ".py"} <= kept


def test_every_folder_with_code_is_a_package():
    folders = {path.parent for path in modules(PACKAGE)}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S)


def test_readme_has_an_example():
    assert python_blocks("README.md")


def whole_page(page: str) -> str:
    """The blocks of a guide build on each other."""
    return "\n".join(python_blocks(page))


def test_the_code_of_the_readme_runs(tmp_path):
    command = [sys.executable, "-W", "error", "-c", whole_page("README.md")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["from_trl", "own_reward", "own_estimator", "plan"])
def test_the_code_of_a_guide_runs(page, tmp_path, monkeypatch):
    """As a module that is imported: a process of its own would load every library once more."""
    code = whole_page(f"docs/{page}.md")
    assert code
    (tmp_path / f"code_of_{page}.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(f"code_of_{page}")


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_between_pages_lead_somewhere(page):
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)\)", path.read_text("utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (path.parent / link).exists()] == []
