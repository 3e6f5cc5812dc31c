"""Pages of the site that are not files of docs/: the home page, and one for each package.

A hook of mkdocs. README.md is the home page, with its links as seen from docs/. `reference/` has a
page for each package and module right under `dare`, filled from docstrings by mkdocstrings; `lab/`
is listed in the order of its titles. So no list of modules or pages is kept by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "dare"


def reference_modules() -> list[str]:
    """Packages and modules right under `dare` that have something to show."""
    names = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
    names += [path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("_")]
    return sorted(names)


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
    for name in reference_modules():
        pages[f"reference/{name}.md"] = f"::: dare.{name}\n"
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files
