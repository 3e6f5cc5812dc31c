"""Pages of the site that are not files of docs/: the home page, and one for each package.

A hook of mkdocs. README.md is the home page, with its links as seen from docs/. `reference/` has a
page for each of our packages and for each part of `dare`, filled from docstrings by mkdocstrings;
`lab/` is listed in the order of its titles. So no list of modules or pages is kept by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"


def reference_modules() -> dict[str, str]:
    """Pages of the reference, in order, and what each shows: the parts of `dare`, then the packages
    below it."""
    parts = [path.parent.name for path in SOURCE.glob("dare/*/__init__.py")]
    parts += [path.stem for path in SOURCE.glob("dare/*.py") if not path.stem.startswith("_")]
    below = [path.parent.name for path in SOURCE.glob("dare_*/__init__.py")]
    return {name: f"dare.{name}" for name in sorted(parts)} | {name: name for name in sorted(below)}


def on_config(config: Any) -> Any:
    """Complete the navigation: a reference page for each module, the lab's pages."""
    folders = {
        "reference/": [f"reference/{name}.md" for name in ["dare", *reference_modules()]],
        "lab/": [f"lab/{path.name}" for path in sorted((ROOT / "docs" / "lab").glob("*.md"))],
    }
    for entry in config["nav"]:
        for title, target in entry.items():
            entry[title] = folders.get(target, target)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    readme = (ROOT / "README.md").read_text("utf-8").replace("](docs/", "](")
    pages = {"index.md": readme}
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "RELEASE.md", "SECURITY.md", "LICENSE"):
        pages[name] = (ROOT / name).read_text("utf-8").replace("](docs/", "](")
    pages["reference/dare.md"] = "::: dare\n    options:\n      show_submodules: false\n"
    for name, shown in reference_modules().items():
        pages[f"reference/{name}.md"] = f"::: {shown}\n"
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files
