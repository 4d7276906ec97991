"""The documentation as a new user meets it: the site builds, and the tutorial runs in a clean virtual environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from documents import ROOT, blocks

pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path, path: str = "") -> str:
    """Neither this project's virtual environment nor its sources are visible to the command."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "DOMAINWISE_DATA", "DOMAINWISE_CACHE", "DOMAINWISE_PLUGINS")
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    clean |= {"PATH": path + os.pathsep + clean["PATH"], "HOME": str(cwd), "MPLCONFIGDIR": str(cwd / ".mpl")}
    result = subprocess.run([str(word) for word in command], cwd=cwd, env=clean, capture_output=True, text=True)
    assert result.returncode == 0, f"{command[:3]}: {result.stdout}\n{result.stderr}"
    return result.stdout


def test_the_tutorial_from_a_clean_virtual_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "fresh", cwd=tmp_path)
    bin_folder = tmp_path / "fresh" / "bin"
    pip = [bin_folder / "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*map(str, pip), "--constraint", str(ROOT / "constraints.txt"), str(ROOT)], check=True)
    work = tmp_path / "work"
    work.mkdir()
    for block in blocks(ROOT / "docs" / "tutorial.md"):
        if block.kind == "python":
            (work / "block.py").write_text(block.text)
            run(bin_folder / "python", "block.py", cwd=work, path=str(bin_folder))
        elif block.kind == "bash":
            run("bash", "-euc", block.text, cwd=work, path=str(bin_folder))
    assert (work / "runs" / "sweep" / "report.html").stat().st_size > 10_000
    assert len((work / "predictions.csv").read_text().splitlines()) == 21


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(tmp_path / "html")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert "Ten minutes" in (tmp_path / "html" / "index.html").read_text()
