"""The documentation site: `make docs` builds it without network into docs/_build/html."""

import sys
from pathlib import Path

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
html_static_path: list[str] = []
nitpicky = False
