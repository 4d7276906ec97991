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
    text: list[str] = []
    for line in lines:
        if line.startswith("    "):
            if text and not text[-1]:
                text += ["::", ""]
            text.append(line)
        else:
            parts = re.split(r"`([^`]+)`", line)
            parts[::2] = [re.sub(r"([\\*|_])", r"\\\1", part) for part in parts[::2]]
            text.append("".join(f"``{part}``\\ " if number % 2 else part for number, part in enumerate(parts)))
    lines[:] = text


PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]*)">\s*'
    r'<img alt="(?P<words>[^"]*)"(?: width="(?P<width>\d+)")? src="(?P<light>[^"]*)">\s*</picture>'
)


def both_pictures(_app: Any, _name: str, source: list[str]) -> None:
    """A <picture> of a light and a dark version becomes two images, of which the theme shows one."""

    def directives(found: re.Match[str]) -> str:
        width = f":width: {found['width']}px\n" if found["width"] else ""
        image = "```{{image}} {}\n:alt: {}\n{}:class: only-{}\n```"
        return "\n\n".join(image.format(found[kind], found["words"], width, kind) for kind in ("light", "dark"))

    source[0] = PICTURE.sub(directives, source[0])


def left_out(_app: Any, _what: str, name: str, _thing: Any, skip: bool, _options: Any) -> bool:
    """Methods that scikit-learn adds to every estimator are described there."""
    return skip or (name.startswith("set_") and name.endswith("_request"))


def setup(app: Any) -> None:
    app.add_css_file("tables.css")
    app.connect("autodoc-process-docstring", plain_words)
    app.connect("autodoc-skip-member", left_out)
    app.connect("source-read", both_pictures)
