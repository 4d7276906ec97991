"""The lowest version of every package that pyproject.toml allows, as a list of constraints for pip.

    python tools/lowest_versions.py                  # torch==2.11, numpy==1.26, ...
    python tools/lowest_versions.py torch==2.13.0    # the same, with another version of torch

Only the standard library is used: the list is made before there is a virtual environment to install into.
"""

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def lowest_versions(pyproject: Path = PYPROJECT) -> dict[str, str]:
    """Package -> lowest version, over the required dependencies and all extras."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {})
    versions: dict[str, str] = {}
    for requirement in [*project["dependencies"], *(line for extra in extras.values() for line in extra)]:
        match = re.fullmatch(r"(?P<name>[\w.-]+)(\[[^]]*\])?\s*(>=\s*(?P<version>[\w.]+))?.*", requirement)
        if match is None or (match["version"] is None and match["name"] != project["name"]):
            raise SystemExit(f"{pyproject}: {requirement!r} has no lowest version: write it as name>=version")
        if match["version"] is not None:
            versions[match["name"]] = match["version"]
    return versions


def main(overrides: list[str]) -> None:
    versions = lowest_versions() | dict(override.split("==", 1) for override in overrides)
    for name, version in versions.items():
        print(f"{name}=={version}")


if __name__ == "__main__":
    main(sys.argv[1:])
