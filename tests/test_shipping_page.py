"""The page on shipping: its Python runs from top to bottom, and its commands exist with the options it names."""

import multiprocessing
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from domainwise.cli import app
from processes import quick_context

PAGE = (Path(__file__).parent.parent / "docs" / "shipping.md").read_text()


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    context = quick_context()
    monkeypatch.setattr(multiprocessing, "get_context", lambda *_: context)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/shipping.md", "exec"), namespace)
    told = capsys.readouterr().out
    assert "(5, 10)" in told and "Drift: these samples differ from every training domain" in told
    assert "<Model " in told and (tmp_path / "hospital-model" / "model.json").is_file()


@pytest.mark.parametrize("line", re.findall(r"^    (domainwise [^\n#]*)", PAGE, re.MULTILINE))
def test_the_commands_exist(line: str) -> None:
    words = shlex.split(line)[1:]
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
    assert not hasattr(command, "commands"), line
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
