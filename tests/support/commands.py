"""Commands run in this process, for tests."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from domainwise.cli import main


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def is_one_line_error(self) -> bool:
        return self.status == 2 and not self.out and self.err.startswith("error: ") and self.err.count("\n") == 1


Command = Callable[..., Result]


def exit_status(*arguments: object) -> int:
    """The exit status of one command; capsys has its output."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    code = stop.value.code
    return code if isinstance(code, int) else 0 if code is None else 1


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    """Exit status, standard output and error of one command."""
    capsys.readouterr()
    return Result(exit_status(*arguments), *capsys.readouterr())


def commands(capsys: pytest.CaptureFixture[str]) -> Command:
    """domainwise(*arguments)."""
    return partial(command, capsys)


def standard_json(text: str) -> Any:
    return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
