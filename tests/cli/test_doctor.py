"""The doctor: says what is here and what is not, and when something will not work."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from domainwise.cli import doctor, main
from domainwise.cli.doctor import LITTLE_SPACE, Finding, examine
from domainwise.core import plugins


def found(root: Path, part: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(root) if finding.part == part}


def test_versions_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(tmp_path, "versions")["torch"].words == torch.__version__
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("domainwise.engine.devices._has_bf16", lambda _: False)
    devices = found(tmp_path, "devices")
    assert devices["cpu"].words.endswith("precisions fp32") and devices["cuda"].good is None


def test_a_package_that_is_not_installed_comes_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(doctor.OPTIONAL, "no-such-package", ("nothing", "no-such-package"))
    packages = found(tmp_path, "packages")
    assert packages["no-such-package"] == Finding(
        "packages", "no-such-package", None, "not installed; for nothing: pip install 'no-such-package'"
    )


def test_data_and_weights_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "resnet50_imagenet.safetensors").touch()
    assert found(tmp_path, "weights")["resnet50-v1"].good
    assert found(tmp_path, "weights")["resnet18"].words == "absent: domainwise weights get resnet18"
    data = found(tmp_path, "data")
    assert data["BackgroundDigits"].good and data["PACS"].good is None
    assert data["PACS"].words == "without PACS: domainwise data get PACS"


def test_what_will_not_work_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def status() -> int:
        with pytest.raises(SystemExit) as stop:
            main(["doctor", "--data-root", str(tmp_path), "--json"])
        return int(stop.value.code or 0)

    assert status() == 0
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=LITTLE_SPACE - 1))
    assert status() == 1
    monkeypatch.undo()
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path / "absent.py"))
    monkeypatch.setattr(plugins, "_loaded", set())
    capsys.readouterr()
    assert status() == 1
    words = [finding["words"] for finding in json.loads(capsys.readouterr().out) if finding["good"] is False]
    assert len(words) == 1 and "absent.py is not a file" in words[0]
