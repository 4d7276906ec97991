"""Commands run in this process, for tests."""

from collections.abc import Callable
from typing import NamedTuple

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


def commands(capsys: pytest.CaptureFixture[str]) -> Command:
    """domainwise(*arguments) -> exit status, standard output and error."""

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        code = stop.value.code
        return Result(code if isinstance(code, int) else 0 if code is None else 1, *capsys.readouterr())

    return run
