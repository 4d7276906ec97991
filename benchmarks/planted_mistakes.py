"""Mistakes planted into the formulas of the methods, one at a time: do the tests of the methods notice each?

Every mistake of `planted_mistakes.toml` is a change of the text of one file of `algorithms`, in a copy of the source: a
sign, a factor, a mean for a sum, a missing detach, another domain. The tests of the method against an independent
float64 version run on it first; where they pass, all tests of the methods.

    python benchmarks/planted_mistakes.py [--only Fishr,SAM] [--json FILE]
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
ALGORITHMS = Path("src/domainwise/algorithms")
REFERENCES = sorted((ROOT / "tests/algorithms").glob("test_references*.py"))
LONGEST_SECONDS = 600


@dataclass(frozen=True)
class Mistake:
    """`old` occurs once in the file; `new` takes its place."""

    method: str
    file: str
    old: str
    new: str

    def apply(self, tree: Path) -> None:
        path = tree / ALGORITHMS / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.file} has {text.count(self.old)} times, not once: {self.old}")
        path.write_text(text.replace(self.old, self.new))

    def undo(self, tree: Path) -> None:
        shutil.copy(ROOT / ALGORITHMS / self.file, tree / ALGORITHMS / self.file)


def near(method: str) -> list[str]:
    """The files of references that name a method."""
    return [str(file.relative_to(ROOT)) for file in REFERENCES if f'"{method}"' in file.read_text()]


def mistakes() -> list[Mistake]:
    listed = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return [Mistake(method, file, old, new) for file, of_file in listed.items() for method, old, new in of_file]


def copy_of_source(folder: Path) -> Path:
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def passes(tree: Path, *tests: str) -> str:
    """Empty if all of the tests pass, or else the first that failed.

    They run in a copy of this process, which has imported torch already.
    """
    log = tree / "log"
    child = os.fork()
    if child == 0:
        os.chdir(tree)
        sys.path.insert(0, str(tree / "src"))
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            signal.alarm(LONGEST_SECONDS)
            os._exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]))
    _, ended = os.waitpid(child, 0)
    if os.WIFSIGNALED(ended):
        return "did not end"
    if os.WEXITSTATUS(ended) == 0:
        return ""
    lines = log.read_text(errors="replace").strip().splitlines()
    named = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return named[0].split(" ")[1] if named else lines[-1]


def outcomes(chosen: list[Mistake], tree: Path) -> Iterator[dict[str, str]]:
    for number, mistake in enumerate(chosen, 1):
        mistake.apply(tree)
        noticed = passes(tree, *near(mistake.method)) or passes(tree, "tests/algorithms")
        mistake.undo(tree)
        print(f"{number:4} {mistake.method:14} {noticed or 'MISSED: ' + mistake.new}", flush=True)
        yield asdict(mistake) | {"noticed by": noticed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="methods, separated by commas")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    methods = given.only.split(",") if given.only else []
    chosen = [mistake for mistake in mistakes() if not methods or mistake.method in methods]
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_source(Path(folder))
        if failed := passes(tree, *[str(file.relative_to(ROOT)) for file in REFERENCES]):
            raise SystemExit(f"the tests fail without a mistake: {failed}")
        found = list(outcomes(chosen, tree))
    missed = [one for one in found if not one["noticed by"]]
    print(f"{len(found) - len(missed)} of {len(found)} mistakes noticed")
    if given.json:
        record = {"planted": len(found), "caught": len(found) - len(missed), "mistakes": found}
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
