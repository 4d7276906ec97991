"""Reading the folders of runs, thousands of them: each file once, and what cannot be read is said, never waited for."""

import gc
import os
import pickle
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.parsing import parse
from domainwise.core.threads import cores
from domainwise.protocol.checked_lines import intact, unseal
from domainwise.protocol.columns import Columns, parse_columns, split_averaged
from domainwise.protocol.metrics import FIELDS
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import ADVICE, LARGEST, RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve, known_losses

IDENTITY = re.compile("[0-9a-f]{16}")
MANY = 3000
"""From this many runs on, helper processes save more time than their start takes."""
CHUNK = 250
"""So many runs are read at a time, by the helper that is free."""


@dataclass(frozen=True)
class RunRecords:
    """What the folder of a run says: its evaluations, and how it ended if it has."""

    run: Run
    curve: Curve
    status: Status | None
    averaged: Curve | None = None
    """The evaluations of averaged weights, if there are any."""

    @property
    def curves(self) -> list[Curve]:
        """Those with evaluations."""
        return [curve for curve in (self.curve, self.averaged) if curve is not None and curve.steps]


def read_runs(folder: Path) -> Iterator[tuple[str, RunRecords | UserError]]:
    """(path, what it holds or why it cannot be read) of every run below a folder, or of the folder's own run."""
    any_run = False
    for path, records in read_all(_folders(folder)):
        if records is not None:
            any_run = True
            yield path, records
    if not any_run and os.path.lexists(folder / "run.json"):
        own = str(files.resolved(folder))
        try:
            records = read_run(own)
            if records is not None:
                yield own, records
        except UserError as error:
            yield own, error


Found = list[tuple[str, RunRecords | UserError | None]]


def read_all(paths: Sequence[str]) -> Found:
    """(path, what it holds or why it cannot be read) of every path; very many are divided among the cores."""
    if len(paths) < MANY:
        return _read_here(paths)
    starts = range(0, len(paths), CHUNK)
    waiting = deque(enumerate(paths[start : start + CHUNK] for start in starts))
    contents: dict[int, Found] = {}

    def work(read: Callable[[Sequence[str]], Found]) -> None:
        with suppress(IndexError):  # none is left
            while True:
                number, chunk = waiting.popleft()
                contents[number] = read(chunk)

    with ThreadPoolExecutor(max(1, cores() - 1)) as pool:
        try:
            helpers = [pool.submit(_with_helper, work) for _ in range(cores() - 1)]
            work(_read_here)
        finally:
            waiting.clear()
        for helper in helpers:
            helper.result()
    return [one for number in sorted(contents) for one in contents[number]]


def _read_here(paths: Sequence[str]) -> Found:
    return [(path, _tried(path)) for path in paths]


def _tried(path: str) -> RunRecords | UserError | None:
    try:
        return read_run(path)
    except UserError as error:
        return UserError(str(error))


def _with_helper(work: Callable[[Callable[[Sequence[str]], Found]], None]) -> None:
    """Works with a process of its own, which imports no torch and needs no guarded `__main__`."""
    package = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", f"from {__name__} import help_reading; help_reading()"]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with (
        suppress(BrokenPipeError),
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment) as helper,
    ):
        work(partial(_by_helper, helper))


def _by_helper(helper: "subprocess.Popen[bytes]", paths: Sequence[str]) -> Found:
    """What the helper reads, or this process if the helper has died."""
    assert helper.stdin and helper.stdout
    try:
        pickle.dump(list(paths), helper.stdin)
        helper.stdin.flush()
        return cast(Found, pickle.load(helper.stdout))
    except (OSError, EOFError, pickle.UnpicklingError):
        return _read_here(paths)


def help_reading() -> None:
    """A helper's work: lists of paths from standard input, what they hold to standard output."""
    gc.disable()
    with suppress(EOFError):
        while True:
            paths: list[str] = pickle.load(sys.stdin.buffer)
            pickle.dump(_read_here(paths), sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
            sys.stdout.buffer.flush()


def _folders(folder: Path) -> list[str]:
    """Everything in a folder that may be the folder of a run, by name."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if not entry.name.startswith(".") and _may_be_folder(entry))
    except OSError as error:
        raise files.Unreadable(folder, error.strerror) from None


def _may_be_folder(entry: "os.DirEntry[str]") -> bool:
    """Whether it is a folder, or is called like one of a run and is none."""
    try:
        return entry.is_dir() or IDENTITY.fullmatch(entry.name) is not None
    except OSError:
        return True


def read_run(path: str) -> RunRecords | None:
    """The run of a folder; None if the folder is something else, a UserError if it cannot be read as the run it is."""
    name = path.rpartition(os.sep)[2]
    try:
        run = Run.read(f"{path}{os.sep}run.json")
    except files.Unreadable as error:
        raise UserError(error.brief) from None
    except FileNotFoundError:
        if IDENTITY.fullmatch(name) and (not Path(path).is_dir() or os.path.lexists(f"{path}{os.sep}records.jsonl")):
            raise UserError("it has no run.json") from None
        return None
    if name != run.id:
        raise UserError(f"its run.json describes {run.id}: a copy, or damaged")
    return read_records(run, path)


def read_records(run: Run, path: str) -> RunRecords:
    """A run's records, parsed in one go; a file unlike those we write is read line by line, to say what is wrong."""
    try:
        data = files.read(f"{path}{os.sep}records.jsonl", limit=LARGEST, advice=ADVICE)
    except files.Unreadable as error:
        raise UserError(error.brief) from None
    except FileNotFoundError:
        _folder(run, path).check_unfinished()
        return RunRecords(run, Curve(run, (), {}), None)
    parsed = parse_records(data, run)
    if parsed is None:
        records, status = _folder(run, path).read()
        averaged = Curve.of(run, records, run.average) if run.average else None
        return RunRecords(run, Curve.of(run, records), status, averaged)
    if parsed.status is None:
        _folder(run, path).check_unfinished()
    averaged = None if parsed.averaged is None else _curve(run, parsed.averaged, run.average)
    return RunRecords(run, _curve(run, parsed.columns), parsed.status, averaged)


def _curve(run: Run, columns: Columns | None, average: str = "") -> Curve:
    if columns is None:
        return Curve(run, (), {})
    values = {name: dict(zip(columns.parts, column.T, strict=True)) for name, column in columns.values.items()}
    accuracy = values.pop("accuracy")
    losses = None if columns.training_loss is None else known_losses(columns.training_loss)
    return Curve(
        run, columns.steps, accuracy, training_loss=losses, seconds=columns.seconds, average=average, others=values
    )


def _folder(run: Run, path: str) -> RunFolder:
    return RunFolder(Path(path).parent, run, Path(path).name)


class ParsedRecords(NamedTuple):
    """A file of records: the columns of the last and of the averaged weights, where it has any, and its status."""

    columns: Columns | None
    averaged: Columns | None
    status: Status | None


def parse_records(data: bytes, run: Run, wanted: Sequence[str] = FIELDS) -> ParsedRecords | None:
    """What a file of records says; None if it must be read line by line."""
    try:
        lines = unseal(intact(data, "", "")).decode()
        status = None
        last = lines.rfind("\n", 0, -1) + 1
        if '"status"' in lines[last:]:
            status, lines = parse(lines[last:].encode(), Status, "", ""), lines[:last]
            if status.run != run.id:
                return None
    except (ValueError, UserError):
        return None
    parts = split_averaged(lines, run.average)
    columns, averaged = (parse_columns(part, run.id, wanted) if part else None for part in parts)
    unread = any(part and found is None for part, found in zip(parts, (columns, averaged), strict=True))
    return None if unread else ParsedRecords(columns, averaged, status)


def read_curves(folder: RunFolder) -> list[Curve]:
    """A run's curves: of its last weights and, if it has an average, of the averaged ones."""
    return read_records(folder.run, str(folder.path)).curves
