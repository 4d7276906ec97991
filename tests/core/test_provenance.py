"""What runs say of where they come from."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from domainwise.core import provenance
from domainwise.engine.train import train
from domainwise.sweeps.plan_run import plan_run


@pytest.fixture(autouse=True)
def unknown_commit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(provenance.COMMIT, raising=False)
    provenance.commit.cache_clear()
    yield
    provenance.commit.cache_clear()


def a_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit, from which the package is made to run."""
    package = folder / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "c")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    monkeypatch.setattr(provenance, "__file__", str(package / "core" / "provenance.py"))
    return package


def head(folder: Path) -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_run_says_where_when_and_by_which_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(provenance.COMMIT, "feedbeef")
    run = plan_run("BackgroundDigits", "ERM", 0, steps=1, hparams={"batch_size": 4})
    status = train(run, tmp_path, device="cpu").status
    assert status.software.startswith(f"domainwise feedbeef, torch {torch.__version__}, Python 3.")
    assert status.device and len(status.date) == len("2026-01-31")
    assert train(run, tmp_path, device="cpu").status.software == status.software, "and its records keep it"


def test_the_commit_of_a_checkout_and_whether_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = a_package(tmp_path, monkeypatch)
    assert provenance.commit() == head(tmp_path)[:10]
    (package / "__init__.py").write_text("changed = True")
    provenance.commit.cache_clear()
    assert provenance.commit() == head(tmp_path)[:10] + "+"


def test_an_installation_inside_another_checkout_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = a_package(tmp_path, monkeypatch)
    installed = package.parent / "installed"
    installed.mkdir()
    (installed / "__init__.py").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(installed / "core" / "provenance.py"))
    assert provenance.commit() is None
