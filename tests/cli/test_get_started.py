"""The documentation as a new user meets it: the site builds, "Get started" runs as written and its output is true."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documents import ROOT, blocks

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "get-started.md"
INSTALL = "pip install .\n"


def run(*command: object, cwd: Path, path: str = "") -> str:
    """Neither this project's virtual environment nor its sources are visible to the command."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "DOMAINWISE_DATA", "DOMAINWISE_CACHE", "DOMAINWISE_PLUGINS")
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    clean |= {"PATH": path + os.pathsep + clean["PATH"], "HOME": str(cwd), "MPLCONFIGDIR": str(cwd / ".mpl")}
    result = subprocess.run([str(word) for word in command], cwd=cwd, env=clean, capture_output=True, text=True)
    assert result.returncode == 0, f"{command[:3]}: {result.stdout}\n{result.stderr}"
    return result.stdout + result.stderr


def words(text: str) -> set[str]:
    """Numbers are left out: accuracies differ between types of CPU."""
    return set(re.findall(r"[A-Za-z]{2,}", text))


def follow(page: Path, work: Path, bin_folder: Path) -> None:
    """Runs the blocks of a page one after the other; a block of text is the output of the one before, or part of it."""
    printed = ""
    for block in blocks(page):
        if block.kind == "python":
            (work / "block.py").write_text(block.text)
            printed = run(bin_folder / "python", "block.py", cwd=work, path=str(bin_folder))
        elif block.kind == "bash":
            commands = block.text.replace(INSTALL, "")
            printed = run("bash", "-euc", commands, cwd=work, path=str(bin_folder))
        elif block.kind == "text":
            missing = words(block.text) - words(printed)
            assert not missing, f"{sorted(missing)} is not in the output: {printed}"


def test_get_started_from_a_clean_virtual_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "fresh", cwd=tmp_path)
    bin_folder = tmp_path / "fresh" / "bin"
    pip = [bin_folder / "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*map(str, pip), "--constraint", str(ROOT / "constraints.txt"), str(ROOT)], check=True)
    work = tmp_path / "work"
    work.mkdir()
    assert INSTALL in PAGE.read_text(encoding="utf-8")
    follow(PAGE, work, bin_folder)
    assert (work / "runs" / "demo" / "report.html").stat().st_size > 10_000
    assert len((work / "predictions.csv").read_text().splitlines()) == 31


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(tmp_path / "html")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert "Get started" in (tmp_path / "html" / "index.html").read_text()
    assert (tmp_path / "html" / "searchindex.js").exists()
    assert "dat-dark.png" in (tmp_path / "html" / "index.html").read_text()
