"""What holds for the package as a whole: what it imports, what it ships, what its README says."""

import ast
import functools
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path

import pytest

import dare
import ranks
from dare import errors
from dare.config import preset_names

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "dare"
# Which of our packages each may import. The distribution brings all of them.
BELOW = {
    "dare_errors": set[str](),
    "dare_sandbox": {"dare_errors"},
    "dare_verify": {"dare_errors", "dare_sandbox"},
    "dare_hints": {"dare_errors", "dare_sandbox", "dare_verify"},
    "dare_decoder": {"dare_errors"},
    "dare": {"dare_decoder", "dare_errors", "dare_hints", "dare_sandbox", "dare_verify"},
}
HEAVY = ("torch", "transformers", "trl", "datasets", "scipy", "pandas")


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Absolute names of all modules that a file imports, at any depth of its code."""
    package = path.relative_to(SOURCE).parent.parts
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


def libraries(package: str) -> set[str]:
    return {name.split(".")[0] for path in modules(SOURCE / package) for name in imported(path)}


def belongs(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def file_name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("module", ["dare", "dare.curriculum", "dare.cli"])
def test_importing_loads_no_heavy_library(module):
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


# Some libraries are refused, as where they are not installed.
LESS = """
import runpy, sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        library = name.partition(".")[0]
        if {refused}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Nothing())
{code}
"""
CORE = (*BELOW, "numpy", "yaml", "safetensors")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def with_extra(extra: str | None, code: str) -> subprocess.CompletedProcess[str]:
    """What a program does where the package was installed with this extra, or with none."""
    refused = f"library not in {CORE!r} and library not in sys.stdlib_module_names"
    if extra == "report":
        refused = f"library in {sorted({*errors._EXTRAS['train']} - {'packaging'})!r}"
    code = LESS.format(refused=refused, code=code)
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)


def command(extra: str | None, words: str) -> tuple[int, str, str]:
    """`dare WORDS` there: exit code, stdout, stderr."""
    code = f"sys.argv[:] = {['dare', *words.split()]!r}; from dare.__main__ import main; main()"
    done = with_extra(extra, code)
    return done.returncode, done.stdout, done.stderr


def test_the_curriculum_needs_numpy_yaml_and_safetensors_alone(tmp_path):
    """A loop of one's own, from the first plan to a saved state."""
    code = f"""
import dare, dare.curriculum
from dare import state
from dare.integrations.loop import LoopCurriculum
runpy.run_path({str(ROOT / "examples" / "own_loop.py")!r})["train"](2)
loop = LoopCurriculum([{{"prompt": "a"}}, {{"prompt": "b"}}])
asked = loop.ask()
loop.save({str(tmp_path / "state")!r})
loop.load({str(tmp_path / "state")!r})
assert loop.ask() == asked
print("done")
"""
    done = with_extra(None, code)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("name", ["DareTrainer", "DareConfig"])
def test_the_trainer_without_torch_is_one_line_with_the_command(name):
    done = with_extra(None, f"from dare import {name}")
    wanted = f"dare.{name} needs torch, not installed: pip install 'dare-rl[train]'"
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {wanted}"


def test_a_module_that_no_extra_brings_is_missed_as_python_misses_it():
    assert errors.absent(ModuleNotFoundError("no", name="my_rewards"), "it") is None


@pytest.mark.parametrize(
    ("words", "needed"),
    [("train", "transformers"), ("doctor", "transformers"), ("plan", "huggingface_hub")],
)
def test_a_command_that_needs_the_trainer_says_so_in_one_line(words, needed):
    line = f"error: `dare {words}` needs {needed}, not installed: pip install 'dare-rl[train]'\n"
    assert command("report", words) == (2, "", line)


def test_the_command_without_its_libraries_is_one_line():
    code, out, err = command(None, "presets")
    assert (code, out) == (2, "")
    assert err.startswith("error: `dare` needs typer, not installed: pip install 'dare-rl[train]'")
    assert err.count("\n") == 1


def test_the_extra_report_is_enough_to_look_at_presets_and_runs():
    code, out, err = command("report", "presets paper")
    assert (code, err) == (0, "")
    assert "estimator" in out
    code = "import dare.report.document, dare.report.pictures, dare.runs.difficulty"
    done = with_extra("report", f"{code}, dare.study.comparison")
    assert done.returncode == 0, done.stderr


def names_of(requirements: list[str]) -> set[str]:
    """The libraries of a list of requirements, without the package's own extras."""
    names = {re.split(r"[\[<>=!~; ]", each)[0].lower() for each in requirements}
    return names - {"dare-rl"}


def test_the_line_for_a_missing_library_knows_all_that_the_extras_bring():
    extras = PROJECT["optional-dependencies"]
    for extra in ("report", "train"):
        named = {name.replace("-", "_") for name in names_of(extras[extra])}
        assert named <= set(errors._EXTRAS[extra])
    assert names_of(PROJECT["dependencies"]) == {"numpy", "pyyaml", "safetensors"}


def test_every_library_that_the_package_imports_is_the_cores_or_of_an_extra():
    known = {*sys.stdlib_module_names, *CORE, *errors._EXTRAS["report"]}
    known |= {*errors._EXTRAS["train"], "triton"}  # torch for GPUs brings triton
    plug_in = PACKAGE / "integrations" / "verl"  # which verl loads, and nobody else
    for path in modules(SOURCE):
        verls = {"omegaconf", "tensordict", "transfer_queue", "verl"}
        more = verls if path.parent == plug_in else set()
        assert {name.partition(".")[0] for name in imported(path)} - known - more == set(), path


@pytest.mark.parametrize("path", modules(PACKAGE / "curriculum"), ids=file_name)
def test_the_curriculum_depends_on_nothing_above_it(path):
    ours = {name for name in imported(path) if belongs(name, (*BELOW,))}
    allowed = ("dare.curriculum", "dare.config", "dare.errors")
    assert {name for name in ours if not belongs(name, allowed)} == set()


def test_every_package_beside_dare_is_known():
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} == set(BELOW)


@pytest.mark.parametrize("package", BELOW)
def test_packages_import_only_those_below_them(package):
    """Also inside functions and for types: they run without `dare`."""
    assert libraries(package) & set(BELOW) - {package} <= BELOW[package]


@pytest.mark.parametrize("package", [name for name in BELOW if name != "dare"])
def test_a_package_runs_without_those_above_it(package, tmp_path):
    above = sorted(set(BELOW) - BELOW[package] - {package})
    here = [path for path in modules(SOURCE / package) if "triton" not in imported(path)]
    paths = [path.relative_to(SOURCE).with_suffix("") for path in here]
    code = "\n".join(f"import {'.'.join(path.parts)}" for path in paths)
    known = f"for name in [*sys.modules]:\n    if name.partition('.')[0] in {[*BELOW]!r}:\n"
    code = f"{known}        del sys.modules[name]\n{code}"
    script = tmp_path / "without.py"
    script.write_text(LESS.format(refused=f"library in {above!r}", code=code), "utf-8")
    done = ranks.run(str(script))  # which has torch, but none of ours any more
    assert done.returncode == 0, done.stderr


def test_the_decoder_stands_on_torch_transformers_and_numpy_alone():
    others = libraries("dare_decoder") - {*sys.stdlib_module_names, "dare_decoder", "dare_errors"}
    assert others == {"numpy", "torch", "transformers", "triton"}


def test_an_error_of_the_lower_packages_is_dares():
    import dare_errors

    assert dare.InvalidInput is errors.InvalidInput is dare_errors.InvalidInput


def test_names_of_the_lower_packages_stay_where_users_know_them():
    import dare_sandbox
    import dare_verify.code
    import dare_verify.math
    import dare_verify.pool
    from dare import sandbox
    from dare.rewards import code, math, pool

    pairs = [(sandbox, dare_sandbox), (code, dare_verify.code), (math, dare_verify.math)]
    for door, home in pairs:
        assert door.__all__ == home.__all__
        assert all(getattr(door, name) is getattr(home, name) for name in home.__all__)
    assert pool.WorkerPool is dare_verify.pool.WorkerPool


Graph = dict[str, set[str]]


@functools.cache
def graph() -> Graph:
    """Which module of ours imports which, at any depth of the code and for types, too.

    `dare` itself, which offers names of its rooms when they are asked for, is left out.
    """
    names = {}
    for path in modules(SOURCE):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found: Graph = {}
    del names["dare"]
    for name, path in names.items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path} imports by a relative name"
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted = [one if one in names else str(node.module) for one in inside]
            else:
                continue
            found[name] |= {one for one in wanted if one in names and one != name}
    return found


def circles(edges: Graph) -> set[frozenset[str]]:
    """Groups of names that all lead to each other."""
    reached: Graph = {}
    for name in edges:
        waiting, seen = [*edges[name]], set[str]()
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += edges[one]
        reached[name] = seen
    together = {
        name: {name, *(one for one in reached[name] if name in reached[one])}
        for name in edges
        if name in reached[name]
    }
    return {frozenset(group) for group in together.values()}


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {frozenset({"b", "c"})}


def test_no_modules_import_each_other_in_a_circle():
    assert circles(graph()) == set()


def rooms() -> Graph:
    """The same for the parts of `dare`; each package below it is one."""

    def room_of(name: str) -> str:
        return name.removeprefix("dare.").split(".")[0]

    found: Graph = {}
    for name, wanted in graph().items():
        room = found.setdefault(room_of(name), set())
        room |= {room_of(one) for one in wanted}
    return {room: wanted - {room} for room, wanted in found.items()}


def test_no_rooms_import_each_other_in_a_circle():
    assert circles(rooms()) == set()


@pytest.mark.parametrize("room", ["policy", "rewards", "data", "runs", "evaluation"])
def test_what_training_rests_on_does_not_know_it(room):
    assert not rooms()[room] & {"training", "study", "report", "commands"}


@pytest.mark.parametrize("path", modules(SOURCE), ids=file_name)
def test_nothing_is_pickled(path):
    picklers = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve")
    assert [name for name in imported(path) if belongs(name, picklers)] == []
    names = {n.attr for n in ast.walk(ast.parse(path.read_text("utf-8"))) if hasattr(n, "attr")}
    assert not [name for name in names if name.endswith(("_object", "_object_list"))]  # of torch


@pytest.mark.parametrize("path", modules(SOURCE), ids=file_name)
def test_asserts_have_no_effects(path):
    """`python -O` leaves them out, with all that they call."""
    asserts = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Assert)]
    called = {ast.unparse(n.func) for a in asserts for n in ast.walk(a) if isinstance(n, ast.Call)}
    assert called <= {"isinstance", "len"}


def test_versions_agree():
    assert PROJECT["version"] == dare.__version__ == metadata.version("dare-rl")
    assert f"## [{dare.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\nversion: {dare.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-vllm.txt"])
def test_constraints_pin_every_dependency(file):
    """vLLM has a file of its own: it wants older versions of what others bring."""
    extras = dict(PROJECT["optional-dependencies"])
    others = [extras.pop("vllm")]
    if file == "constraints.txt":
        others = list(extras.values())
    wanted = [PROJECT["dependencies"], extras["train"], extras["report"], *others]
    names = set().union(*(names_of(some) for some in wanted))
    lines = (ROOT / file).read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins), "exact, without local tags"
    assert names <= {pin.split("==")[0].lower().replace("_", "-") for pin in pins}


def test_what_verl_runs_on_is_pinned():
    """Its environment has the core, verl, and what verl imports without requiring it."""
    text = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    [installed] = re.findall(r"-c constraints-verl\.txt\s+-e \. (.*)", text)
    lines = (ROOT / "constraints-verl.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins), "exact, without local tags"
    wanted = names_of([*PROJECT["dependencies"], *installed.split(), "torch", "transformers"])
    assert wanted <= {pin.split("==")[0].lower() for pin in pins}


def test_presets_and_type_marker_are_shipped():
    assert {"dare", "paper", "grpo"} <= set(preset_names())
    for package in BELOW:
        assert resources.files(package).joinpath("py.typed").is_file()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    kept = {
        path
        for package, globs in settings["package-data"].items()
        for glob in globs
        for path in (SOURCE / package).glob(glob)
    }
    data = {
        path
        for package in BELOW
        for path in (SOURCE / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path for path in data if path.suffix != ".py"} <= kept


def test_every_folder_with_code_is_a_package():
    folders = {path.parent for path in modules(SOURCE)}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S)


def test_readme_has_an_example():
    assert python_blocks("README.md")


def whole_page(page: str) -> str:
    """The blocks of a guide build on each other."""
    return "\n".join(python_blocks(page))


GUIDES = [f"docs/{name}.md" for name in ("from_trl", "rewards", "estimators", "architecture")]


@pytest.mark.parametrize("page", ["README.md", *GUIDES, "docs/scale.md"])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """Without a warning, and as a module that is imported: a process of its own would load every
    library once more."""
    code, name = whole_page(page), f"code_of_{Path(page).stem}"
    assert code
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(name)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("failures", [1, 99], ids=["a lock that is let go", "a lock that stays"])
def test_make_waits_for_the_package_managers_lock_and_says_why_nothing_was_installed(
    failures, tmp_path
):
    """With an apt-get and a clock of our own, in a world where nothing else is installed."""
    for tool in ("make", "sh", "grep", "tail", "sed", "awk", "cat"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    (tmp_path / "slept").touch()
    scripts = {
        "id": "echo 0",
        "sleep": f'echo "$1" >> {tmp_path}/slept',
        "date": f"awk '{{s += $1}} END {{print 100 + s}}' {tmp_path}/slept",
        "apt-get": f"""
            echo called >> {tmp_path}/calls
            test "$(grep -c called {tmp_path}/calls)" -gt {failures} && exit 0
            echo "E: Could not get lock /var/lib/dpkg/lock: held by process 42 (apt)" >&2
            exit 100""",
    }
    for name, body in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    command = [str(tmp_path / "make"), "-C", str(ROOT), "system", "APT_WAIT=3"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.returncode == 0, "tests that need it are skipped"
    assert ("held by process 42" in done.stdout) == (failures == 99)
    slept = [int(seconds) for seconds in (tmp_path / "slept").read_text("utf-8").split()]
    assert sum(slept) >= 3 > sum(slept[:-1]) if failures == 99 else len(slept) == 1
