"""Foreign JSON: checked values, or one line that says which field of which file is wrong."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from domainwise.core.errors import UserError
from domainwise.core.parsing import Count, FilePath, Fraction, Longest, check, parse, parse_any, read_file


@dataclass(frozen=True)
class Row:
    """One of everything."""

    name: str
    step: Count
    accuracy: Fraction
    state: Literal["done", "failed"] = "done"
    loss: float = 0.0
    flag: bool = False
    note: Annotated[str, Longest(3)] = ""
    file: FilePath = ""
    parts: tuple[tuple[str, int], ...] = ()
    values: dict[str, float | str | None] = field(default_factory=dict)
    anything: Any = None


GOOD: dict[str, Any] = {"name": "a", "step": 1, "accuracy": 0.5}
DEEP: Any = 1
for _ in range(30):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"accuracy": 1},
        {"state": "failed", "loss": -2, "flag": True, "note": "abc"},
        {"parts": [["a", 1], ["b", -2]]},
        {"values": {"a": 1, "b": 0.5, "c": "x", "d": None}},
        {"anything": {"a": [1, {"b": None}]}},
        {"name": "\udcff"},
    ],
    ids=str,
)
def test_good_values_are_kept_as_they_are(more: dict[str, Any]) -> None:
    row = parse(json.dumps(GOOD | more).encode(), Row, "x", "y")
    expected = GOOD | more | ({"parts": (("a", 1), ("b", -2))} if "parts" in more else {})
    assert vars(row).items() >= expected.items()
    assert type(row.accuracy) is type(expected["accuracy"]), "identities depend on how a number was written"


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"accuracy": "abc"}, '"accuracy" must be a number from 0 to 1, not "abc"'),
        ({"accuracy": 1.5}, '"accuracy" must be a number from 0 to 1, not 1.5'),
        ({"accuracy": True}, '"accuracy" must be a number from 0 to 1, not true'),
        ({"step": -1}, '"step" must be a whole number from 0, not -1'),
        ({"step": 1.0}, '"step" must be a whole number from 0, not 1.0'),
        ({"step": True}, '"step" must be a whole number from 0, not true'),
        ({"step": 1 << 70}, '"step" must be a whole number from 0, not 1180591620717411303424'),
        ({"name": None}, '"name" must be a text of at most 1,000 characters, not null'),
        ({"name": "x" * 5000}, '"name" must be a text of at most 1,000 characters, not "xxx'),
        ({"name": "\ud800"}, '"name" must be Unicode text'),
        ({"file": "a\0b"}, '"file" must be a text without NUL'),
        ({"note": "long"}, '"note" must be a text of at most 3 characters'),
        ({"state": "dnoe"}, '"state" must be one of "done", "failed", not "dnoe"'),
        ({"state": ["done"]}, '"state" must be one of "done", "failed", not a list'),
        ({"flag": 1}, '"flag" must be true or false, not 1'),
        ({"parts": {}}, '"parts" must be a list'),
        ({"parts": [["a"]]}, '"parts" must be a list of 2'),
        ({"values": {"a": {}}}, '"values.a" must be a finite number, not an object'),
        ({"anything": DEEP}, '"anything" must not be nested deeper than 20 levels'),
        ({"anything": [1 << 70]}, '"anything" must be a finite number'),
        ({"spell": 1}, '"spell" is an unknown field'),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_values_are_named(more: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(json.dumps(GOOD | more).encode(), Row, "runs/x.jsonl, line 3", "restore it")
    message = str(caught.value)
    assert message.startswith(f"runs/x.jsonl, line 3: {complaint}") and message.endswith(": restore it")
    assert "\n" not in message and len(message) < 250


def test_a_missing_field_and_no_object() -> None:
    with pytest.raises(UserError, match='"step" is missing'):
        check({"name": "a", "accuracy": 1}, Row, "x", "y")
    with pytest.raises(UserError, match="must be an object, not a list"):
        check([], Row, "x", "y")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "cut short or no JSON"),
        (b'{"a": ', "cut short or no JSON"),
        (b"\xff", "not UTF-8"),
        (b"\0", "cut short or no JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', '"c" is there twice'),
        (b"[NaN]", "NaN is no JSON"),
        (b"[-Infinity]", "-Infinity is no JSON"),
        (b"9" * 5000, "cut short or no JSON"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_text_that_is_no_strict_json(text: bytes, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        parse_any(text, "x", "y")


@pytest.mark.parametrize(
    ("text", "kind"),
    [(b"1e999", float), (b"[1e999]", list[float]), (b"[1e999]", list[Any]), (b'{"a": 1e999}', dict[str, Any])],
)
def test_numbers_too_large_to_be_finite(text: bytes, kind: Any) -> None:
    with pytest.raises(UserError, match="must be a finite number, not Infinity"):
        parse(text, kind, "x", "y")


def test_only_plain_files_of_limited_size_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        read_file(file, "")
    file.write_bytes(b"12345")
    assert read_file(file, "", 5) == b"12345"
    with pytest.raises(UserError, match=r"file cannot be read \(larger than 0 MiB\): advice"):
        read_file(file, "advice", 4)
    with pytest.raises(FileNotFoundError):
        read_file(file / "below", "")
    with pytest.raises(UserError, match="not a regular file"):
        read_file(tmp_path, "")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UserError, match=r"fifo cannot be read \(not a regular file\)"):
        read_file(tmp_path / "fifo", "")
