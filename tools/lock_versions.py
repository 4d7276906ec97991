"""The pinned versions with the hashes of their files: `python tools/lock_versions.py > requirements.lock`.

Reads constraints.txt, and from the package index the SHA-256 of every wheel for Python 3.11 or newer on Linux, macOS or
Windows with a usual processor. torch is left out: which of its builds is installed depends on the machine's index.
So is timm, which the set-up does not install: it needs torchvision, whose builds belong to those of torch.
"""

import re
import urllib.request
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
INDEX = "https://pypi.org/simple"
LINK = re.compile(r'<a href="[^"]*#sha256=([0-9a-f]{64})"[^>]*>([^<]+)</a>')
UNLOCKED = ("torch", "timm")
OLD = re.compile(r"-(cp2\d*|cp3\d|cp310|pp\d+|py2)-(?!.*abi3)")
ODD = re.compile(r"musllinux|ppc64|s390x|riscv|i686|win32|armv|android|ios_|wasm|t-(?:many|mac|win)")


def hashes(name: str, version: str) -> list[str]:
    """The SHA-256 of the wheels of a release, or of its source where there are none."""
    with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
        links = LINK.findall(answer.read().decode())
    own = {file: digest for digest, file in links if _version(file) == version}
    wheels = {file: digest for file, digest in own.items() if file.endswith(".whl")}
    usual = {file: digest for file, digest in wheels.items() if not OLD.search(file) and not ODD.search(file)}
    if not own:
        raise SystemExit(f"{INDEX} has no files of {name} {version}")
    return sorted(set((usual or wheels or own).values()))


def _version(file: str) -> str:
    return file.split("-")[1] if file.endswith(".whl") else file.removesuffix(".tar.gz").rpartition("-")[2]


def locked(constraints: str) -> str:
    lines = ["# Made by tools/lock_versions.py from constraints.txt."]
    for line in constraints.split():
        name, _, version = line.partition("==")
        if name not in UNLOCKED:
            normal = re.sub(r"[-_.]+", "-", name).lower()
            lines.append(" \\\n".join([line, *(f"    --hash=sha256:{one}" for one in hashes(normal, version))]))
    return "\n".join(lines)


if __name__ == "__main__":
    print(locked(CONSTRAINTS.read_text()))
