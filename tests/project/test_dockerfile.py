"""The Dockerfile by its lines: what it copies exists, what it installs is pinned, what it starts is a command."""

import json
import re
import subprocess
import sys
import tomllib

import pytest
import typer.main

from documents import ROOT
from domainwise.cli import app
from domainwise.serving import create_app
from served import served, small_model

FILE = ROOT / "docker" / "Dockerfile"
KNOWN = ("FROM", "ENV", "ARG", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT")


def instructions() -> list[tuple[str, str]]:
    """(instruction, its words), comments left out and continued lines joined."""
    lines = [line for line in FILE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined]


def words_of(name: str) -> list[str]:
    return [words for instruction, words in instructions() if instruction == name]


def test_instructions_are_known_and_begin_with_an_image_that_has_a_version() -> None:
    found = instructions()
    assert {name for name, _ in found} <= set(KNOWN) and found[0][0] == "FROM"
    (image,) = words_of("FROM")
    name, _, tag = image.partition(":")
    assert name == "python" and re.fullmatch(r"3\.\d+-slim", tag)
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert int(tag.split(".")[1].split("-")[0]) >= int(required.removeprefix(">=3."))


def test_what_is_copied_exists_and_is_let_through() -> None:
    ignored = (FILE.parent / "Dockerfile.dockerignore").read_text().split()
    assert ignored[0] == "*"
    for words in words_of("COPY"):
        for source in words.split()[:-1]:
            assert (ROOT / source).exists() and f"!{source}" in ignored
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = " ".join(words_of("COPY")).split()
    assert {metadata["readme"], *metadata["license-files"]} <= set(copied), "the build reads them"


def test_everything_is_installed_with_pinned_versions() -> None:
    installs = [words for words in words_of("RUN") if "pip install" in words]
    assert len(installs) == 2 and all("--constraint constraints.txt" in words for words in installs)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "'.[serve]'" in installs[1] and "serve" in extras
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().split()}
    assert {"torch", *(re.split("[><=]", line)[0] for line in extras["serve"])} <= pinned


def test_it_does_not_run_as_root_and_starts_a_command() -> None:
    names = [name for name, _ in instructions()]
    assert words_of("USER") == ["10001"] and names.index("USER") < names.index("ENTRYPOINT")
    assert not any("/src" in words for words in words_of("RUN")[2:]), "nothing is written after the user changes"
    program, name, *arguments = json.loads(words_of("ENTRYPOINT")[0])
    assert program == "domainwise"
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    given = command.make_context(name, list(arguments)).params
    assert str(given["model"]) == "/model" and given["host"] == "0.0.0.0"
    assert words_of("EXPOSE") == [str(given["port"])]


def test_the_health_check_tells_a_server_that_answers() -> None:
    words = words_of("HEALTHCHECK")[0]
    program, *arguments = json.loads(words[words.index("CMD") + 4 :])
    assert program == "python"
    model = small_model()
    with served(create_app(model)) as client:
        own = [word.replace("127.0.0.1:8000", client.host) for word in arguments]
        subprocess.run([sys.executable, *own], check=True, timeout=60)
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([sys.executable, *own], check=True, timeout=60, stderr=subprocess.DEVNULL)
