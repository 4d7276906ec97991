"""Contributors rely on one version, one set of lint commands, tested lower bounds, and links that lead somewhere."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import domainwise
from documents import ROOT
from lowest_versions import lowest_versions as read

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def yaml_file(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def makefile(target: str) -> tuple[list[str], list[str]]:
    """Prerequisites and recipe of a target."""
    rule = re.search(rf"^{target}:(.*)\n((?:\t.*\n)*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert rule is not None, target
    return rule[1].split(), [line.strip() for line in rule[2].splitlines()]


def lowest_versions(*overrides: str) -> dict[str, str]:
    command = [sys.executable, str(ROOT / "tools" / "lowest_versions.py"), *overrides]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return dict(line.split("==") for line in lines)  # type: ignore[misc]


def test_the_version_is_stated_once_and_cited_correctly() -> None:
    assert "version" not in PYPROJECT["project"] and PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "src/domainwise/__init__.py"
    citation = yaml_file("CITATION.cff")
    assert citation["version"] == domainwise.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", changelog, re.MULTILINE)
    assert versions[0] == ("Unreleased", "")
    assert versions[1] == (domainwise.__version__, str(citation["date-released"]))


def test_the_paper_is_cited_as_in_the_readme() -> None:
    (paper,) = yaml_file("CITATION.cff")["references"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for value in (paper["title"], paper["url"], str(paper["year"]), paper["collection-title"]):
        assert value in readme
    authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    assert authors in readme


def test_pre_commit_runs_make_lint() -> None:
    (repository,) = yaml_file(".pre-commit-config.yaml")["repos"]
    (hook,) = repository["hooks"]
    assert (repository["repo"], hook["language"]) == ("local", "system")
    assert (hook["entry"], hook["pass_filenames"]) == ("make lint", False)
    assert makefile("lint")[1] == ["$(BIN)/ruff check .", "$(BIN)/ruff format --check .", "$(BIN)/mypy"]


def test_the_workflow_calls_make_test_which_lints_first() -> None:
    workflow = yaml_file(".github/workflows/test.yml")
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert len(commands) == 1 and commands[0].split()[:2] == ["make", "test"]
    assert "lint" in makefile("test")[0]
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets" not in (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12"]


def test_lint_looks_at_the_tools() -> None:
    assert "tools" in PYPROJECT["tool"]["ruff"]["src"] and "tools" in PYPROJECT["tool"]["mypy"]["files"]


def test_lowest_versions_are_the_lower_bounds() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    requirements = [*PYPROJECT["project"]["dependencies"], *(line for extra in extras.values() for line in extra)]
    bounds = dict(line.split(">=") for line in requirements if not line.startswith("domainwise["))
    assert lowest_versions() == bounds
    assert lowest_versions("torch==9.9") == bounds | {"torch": "9.9"}


def test_a_requirement_without_a_lower_bound_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\nname = "mine"\ndependencies = ["torch[opt] >= 2.1, <3", "mine[dev]"]\n')
    assert read(file) == {"torch": "2.1"}
    file.write_text('[project]\nname = "mine"\ndependencies = ["torch"]\n')
    with pytest.raises(SystemExit, match=r"'torch' has no lowest version: write it as name>=version"):
        read(file)


def test_every_direct_dependency_is_pinned_for_the_set_up() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    assert {name.lower() for name in lowest_versions()} <= pinned


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_and_make_targets_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / target).exists(), target
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE):
        assert target.startswith(("reproduce-", "publish-")) or makefile(target)


def test_training_imports_only_what_training_needs() -> None:
    """Packages of the pictures, the page and the estimator are imported where they are used."""
    code = """if True:
        import sys
        import domainwise as dw
        dw.train, dw.fit, dw.ALGORITHMS, dw.DATASETS, dw.NETWORKS
        print(*{"matplotlib", "scipy", "sklearn", "pandas", "jinja2", "pooch", "mlxtend"} & set(sys.modules))
    """
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"
