"""The documentation site: `make docs` builds it without network into docs/_build/html."""

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))

import domainwise  # noqa: E402

project = "domainwise"
author = "The domainwise authors"
copyright = "The domainwise authors, MIT licence"
version = release = domainwise.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
html_theme = "furo"
html_title = "domainwise"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
nitpicky = False


def plain_words(_app: Any, _what: str, _name: str, _thing: Any, _options: Any, lines: list[str]) -> None:
    """Docstrings here are plain words: `names` become code, indented lines stay as they are, nothing else is markup."""
    told: list[str] = []
    for line in lines:
        if line.startswith("    "):
            if told and not told[-1]:
                told += ["::", ""]
            told.append(line)
        else:
            parts = re.split(r"`([^`]+)`", line)
            parts[::2] = [re.sub(r"([\\*|_])", r"\\\1", part) for part in parts[::2]]
            told.append("".join(f"``{part}``\\ " if number % 2 else part for number, part in enumerate(parts)))
    lines[:] = told


def left_out(_app: Any, _what: str, name: str, _thing: Any, skip: bool, _options: Any) -> bool:
    """Methods that scikit-learn adds to every estimator are described there."""
    return skip or (name.startswith("set_") and name.endswith("_request"))


def setup(app: Any) -> None:
    app.add_css_file("tables.css")
    app.connect("autodoc-process-docstring", plain_words)
    app.connect("autodoc-skip-member", left_out)
