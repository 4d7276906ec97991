"""The command line in this process."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from domainwise.cli import main


class Result(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Result]


def in_process(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        code = stop.value.code
        return Result(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


def standard_json(text: str) -> Any:
    return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
