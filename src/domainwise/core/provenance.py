"""Where a result comes from: the device, the software with its commit, and the day."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

COMMIT = "DOMAINWISE_COMMIT"
"""Names the commit where the source is a copy without its history."""


def provenance(device: "torch.device") -> dict[str, Any]:
    """Device, software and date of a training, as its records store them."""
    import torch

    made_with = f"domainwise {commit() or package_version('domainwise') or 'unknown'}"
    software = f"{made_with}, torch {torch.__version__}, Python {platform.python_version()}"
    return {"device": device_name(device), "software": software, "date": datetime.now(UTC).date().isoformat()}


def device_name(device: "torch.device") -> str:
    """The model name of a device."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


def package_version(package: str) -> str | None:
    """The version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def commit() -> str | None:
    """The commit of the checkout that this package runs from, with a + if files differ from it; None if unknown."""
    if named := os.environ.get(COMMIT):
        return named
    package = Path(__file__).parents[1]
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        changed = _git(package, "status", "--porcelain", "--untracked-files=no", ".")
        return _git(package, "rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=10)
    return done.stdout.strip()


@cache
def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
