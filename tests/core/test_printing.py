"""Names of files, domains and classes on terminals of every kind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commands import Command
from domainwise.core.printing import printable
from domainwise.core.table import Bold, Table
from handmade_records import a_run, write_run

EVIL = "\x1b[31mred\x07\r\nline\u202e"


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert printable(EVIL) == r"\x1b[31mred\x07\r\nline\u202e"
    assert printable("Ärger → 猫 ± 1") == "Ärger → 猫 ± 1"
    assert printable(os.fsdecode(b"caf\xe9")) == "caf\ufffd"


def test_a_table_shows_names_in_one_line() -> None:
    table = Table([EVIL, "x"], [[EVIL, Bold("1.0")]], title=EVIL, caption=EVIL, notes=[EVIL])
    for text in (table.text(), table.markdown_rows()):
        assert "\x1b" not in text and "\r" not in text and r"\x1b[31mred" in text
    assert "**1.0**" in table.markdown_rows()


@pytest.mark.parametrize("name", ["\x1b[31mred", "two\nlines", os.fsdecode(b"caf\xe9")])
def test_no_name_reaches_the_terminal_as_it_is(tmp_path: Path, domainwise: Command, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    told = domainwise("table", folder)
    assert told.is_one_line_error and "\x1b" not in told.err
    write_run(folder, a_run())
    (folder / "0").mkdir()
    (folder / "0" / "run.json").write_text("{}")
    told = domainwise("table", folder)
    assert told.status == 0 and told.err.count("\n") == 1 and "\x1b" not in told.err + told.out


def test_a_terminal_of_ascii_shows_what_it_can(tmp_path: Path) -> None:
    for trial in range(2):
        write_run(tmp_path, a_run(trial=trial))
    command = [sys.executable, "-m", "domainwise", "table", str(tmp_path)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0 and "50.0 +- 0.0" in result.stdout, result.stderr
