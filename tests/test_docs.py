"""The pages: few, short, generated where they hold figures, and linked to things that exist."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
LAB = sorted((DOCS / "lab").glob("*.md"))
SCRIPT = ROOT / "benchmarks" / "pages.py"
NAMED = {"ids": lambda path: path.stem}
# Words of a dialect that grew here; the plain word is in the list of docs/architecture.md.
DIALECT = ("policy of now", "dearer", " mend ", "mended", "a run a seed")


def prose(text: str) -> str:
    """Without code and without what a script wrote."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"<!-- (?:table|made by).*?<!-- end -->", "", text, flags=re.S)


def test_there_are_few_pages():
    assert len(PAGES) <= 11


@pytest.mark.parametrize("page", PAGES, **NAMED)
def test_a_page_is_short(page):
    words = [word for word in prose(page.read_text("utf-8")).split() if re.search(r"\w", word)]
    assert len(words) <= 900


@pytest.mark.parametrize("page", LAB, **NAMED)
def test_a_page_of_the_lab_opens_with_question_answer_and_caveat(page):
    lines = [line for line in page.read_text("utf-8").splitlines() if line]
    assert lines[0].startswith("# ")
    for line, word in zip(lines[1:4], ("Question", "Answer", "Caveat"), strict=True):
        assert line.startswith(f"- **{word}.** ")


@pytest.mark.parametrize("page", [*PAGES, *LAB, ROOT / "README.md"], **NAMED)
def test_a_page_speaks_plain_english(page):
    text = page.read_text("utf-8")
    assert [word for word in DIALECT if word in text] == []


def check(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_no_table_is_stale():
    done = check("--check")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["blocks"] > 20


def test_a_changed_figure_makes_a_page_stale_and_the_script_writes_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import pages

    text = (DOCS / "lab" / "language_model.md").read_text("utf-8")
    new, stale = pages.filled(text.replace("0.350", "0.999", 1))
    assert (new, stale) == (text, ["three-seeds-curve"])
    (tmp_path / "lab").mkdir()
    page = tmp_path / "page.md"
    page.write_text("<!-- table: pilot -->\n<!-- end -->\n", "utf-8")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    assert pages.main(["--check"]) == 1
    assert pages.main([]) == 0
    assert "MATH-500" in page.read_text("utf-8")
    assert pages.main(["--check"]) == 0


def test_tables_have_the_lines_that_their_pages_speak_of(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import pages

    assert "| best constant in hindsight | 0." in pages.TABLES["estimators-pocket"]()
    thinning = pages.TABLES["thinning"]()
    assert "variance of the gradient" in thinning
    assert "| `grpo`, not thinned | - | - | " in thinning


def test_a_block_of_an_unknown_name_is_refused(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import pages

    with pytest.raises(SystemExit, match="'none-such': is not one of"):
        pages.filled("<!-- table: none-such -->\n<!-- end -->")


@pytest.mark.parametrize("path", sorted((DOCS / "results").glob("*.json")), **NAMED)
def test_every_result_is_shown_or_linked(path):
    """Old results go: a file that no page needs is a file that nobody will repeat."""
    shown = "".join(page.read_text("utf-8") for page in [*PAGES, *LAB])
    assert f"results/{path.name}" in shown


def anchors(path: Path) -> set[str]:
    """Of the headings, as the site and the forge make them."""
    heads = re.findall(r"^#+ (.*)", path.read_text("utf-8"), re.M)
    plain = (re.sub(r"[^\w\- ]", "", head.lower()).strip() for head in heads)
    return {re.sub(r"[ ]+", "-", head) for head in plain}


@pytest.mark.parametrize(
    "page",
    [*PAGES, *LAB, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RELEASE.md"))],
    **NAMED,
)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    for link in links:
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_pages_that_the_package_names_exist():
    for path in (ROOT / "src").rglob("*"):
        if path.suffix in (".py", ".yaml", ".md"):
            named = re.findall(r"docs/[\w/]+\.\w+", path.read_text("utf-8"))
            assert [name for name in named if not (ROOT / name).exists()] == [], path


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    assert [page.name for page in PAGES if page.name not in nav] == []


@pytest.mark.parametrize(
    "path",
    [ROOT / "CITATION.cff", ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")],
    **NAMED,
)
def test_files_that_other_tools_read_are_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text("utf-8")), dict)


def test_the_workflow_calls_what_the_makefile_has():
    workflow = (ROOT / ".github" / "workflows" / "checks.yml").read_text("utf-8")
    called = set(re.findall(r"run: make ([a-z ]+)", workflow))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    assert {name for names in called for name in names.split()} <= targets
    assert "scripts/check_wheel.sh" in workflow
    assert (ROOT / "scripts" / "check_wheel.sh").stat().st_mode & 0o100


@pytest.mark.parametrize("page", [*PAGES, *LAB], **NAMED)
def test_files_that_a_page_names_exist(page):
    """A reader who is sent to `curriculum/buffer.py` must find it there."""
    folders = ("src", "benchmarks", "examples", "scripts", "tests")
    files = [f"/{path}" for name in folders for path in (ROOT / name).rglob("*.py")]
    named = re.findall(r"`(?:\w+ )?([\w/]+\.py)`", prose(page.read_text("utf-8")))
    theirs = {"grpo_continuous_batching.py", "my_module.py", "mine.py"}
    missing = {name for name in named if not any(file.endswith(f"/{name}") for file in files)}
    assert missing - theirs == set()
