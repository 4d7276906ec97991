"""One try: a command in a process of its own, forked from one that has imported everything, with a time limit."""

import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

LIMIT = 40.0
"""Seconds until a try counts as a hang."""
MEMORY, LARGEST_FILE = 12 << 30, 1 << 30
"""Bytes that a try may map, and write to one file."""
PRELOADED = (
    "domainwise.analysis.audit",
    "domainwise.cli",
    "domainwise.models.compare",
    "domainwise.models.drift",
    "domainwise.models.folder",
    "domainwise.reports.page.models",
    "domainwise.reports.pictures",
    "domainwise.sweeps.local",
    "matplotlib.pyplot",
    "scipy.stats",
    "sklearn.linear_model",
    "torch._dynamo",
)
GOOD = ("worked", "same", "said", "refused")
APART = ("run.json", "audit.json")
"""Files of a run that are no result: the name of its folder vouches for its description."""
PASSING = ("seconds", "seconds_left", "date", "checksum", "crc")
"""Fields of JSON that differ from one execution to the next."""
BAD = ("traceback", "hang", "crash", "mute", "silent", "lost", "executed")
MEANINGS = {
    "worked": "did what was asked",
    "same": "the same result as with undamaged files",
    "said": "another result, and said what was left out or mended",
    "refused": "one line, exit status 1 or 2",
    "traceback": "a Python traceback",
    "hang": "no answer within the time limit",
    "crash": "ended by a signal",
    "mute": "failed without a word",
    "silent": "another result, without a word",
    "lost": "records lost, doubled or changed by an interruption",
    "executed": "a script in a name was executed",
}


@dataclass(frozen=True)
class Try:
    """A command, and what is done before it to the scratch folder it runs in."""

    kind: str
    number: int
    target: str
    """What is attacked: a command, a file format."""
    what: str
    """What was done to it."""
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Folders of the workspace that are copied into the scratch folder."""
    prepare: Callable[[Path], None] = lambda _: None
    watch: tuple[str, ...] = ()
    """Files and folders whose content is part of the command's result."""
    baseline: "Answer | None" = None
    """What the command answers when nothing is damaged."""
    file: str = ""
    """The name of the file that was damaged."""


@dataclass(frozen=True)
class Answer:
    """What a command did: exit status (None: the time limit), output, and the content of what it wrote."""

    status: int | None
    out: str
    err: str
    content: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a try ended."""

    kind: str
    number: int
    target: str
    what: str
    command: str
    outcome: str
    line: str = ""
    seconds: float = 0.0
    shown: str = field(default="", repr=False)


def preload() -> None:
    """Imports in this process what commands import, so that forks start in a moment; computes nothing."""
    for name in PRELOADED:
        import_module(name)
    import torch

    from domainwise.data.sources import downloads

    os.environ["MPLBACKEND"] = "Agg"
    torch.set_num_threads(1)
    downloads.PAUSE_SECONDS = 0.0


def classify(answer: Answer, baseline: Answer | None, file: str = "") -> str:
    """How a try ended; `file` is the name of the file that was damaged."""
    text = answer.err + answer.out
    if answer.status is None:
        return "hang"
    if answer.status < 0:
        return "crash"
    if "Traceback (most recent call last)" in text:
        return "traceback"
    if answer.status:
        return "refused" if text.strip() else "mute"
    if baseline is None:
        return "worked"
    if (answer.out, answer.content) == (baseline.out, baseline.content):
        return "same"
    named = file and answer.out.count(file) > baseline.out.count(file)
    return "said" if named or _lines(answer.err) - _lines(baseline.err) else "silent"


def _lines(text: str) -> set[str]:
    """Lines without their digits: counts and times differ without meaning."""
    return {"".join(c for c in line if not c.isdigit()).strip() for line in text.splitlines()}


def ask(one: Try, workspace: Path, place: Path) -> Answer:
    """The answer of one try."""
    (answer,) = [answer for _, answer, _ in answers([one], workspace, place, 1)]
    return answer


def outcomes(tries: Sequence[Try], workspace: Path, place: Path, jobs: int) -> Iterator[Outcome]:
    """The outcome of every try, as they end."""
    for one, answer, seconds in answers(tries, workspace, place, jobs):
        outcome = classify(answer, one.baseline, one.file)
        said = [line.strip() for line in answer.err.splitlines() if line.strip()] or answer.out.splitlines()
        command = "domainwise " + " ".join(a if len(a) < 60 else f"{a[:57]}..." for a in one.arguments)
        shown = f"{answer.out}\n{answer.err}"
        line = (said or [""])[-1][:300]
        yield Outcome(one.kind, one.number, one.target, one.what, command, outcome, line, round(seconds, 2), shown)


def answers(tries: Sequence[Try], workspace: Path, place: Path, jobs: int) -> Iterator[tuple[Try, Answer, float]]:
    """(try, answer, seconds), `jobs` at once."""
    waiting = list(reversed(tries))
    going: dict[int, tuple[Try, Path, float]] = {}
    while waiting or going:
        while waiting and len(going) < jobs:
            one = waiting.pop()
            scratch = Path(tempfile.mkdtemp(dir=place))
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if not pid:
                _live(one, workspace, scratch)
            going[pid] = one, scratch, time.monotonic()
        time.sleep(0.005)
        for pid, (one, scratch, began) in list(going.items()):
            ended, code = os.waitpid(pid, os.WNOHANG)
            seconds = time.monotonic() - began
            hung = not ended and seconds > LIMIT
            if not ended and not hung:
                continue
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            if hung:
                os.waitpid(pid, 0)
            status = None if hung else os.waitstatus_to_exitcode(code)
            del going[pid]
            yield one, _read(one, scratch, status), seconds
            shutil.rmtree(scratch, ignore_errors=True)


def _live(one: Try, workspace: Path, scratch: Path) -> None:
    """The life of a forked process."""
    status = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        in_scratch(one.needs, workspace, scratch)
        one.prepare(scratch)
        os.chdir(scratch)
        for number, name in ((0, os.devnull), (1, "..out"), (2, "..err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
        status = run_command(one.arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def in_scratch(needs: Sequence[str], workspace: Path, scratch: Path) -> None:
    """Copies folders into the scratch folder, and points every default of the program into it."""
    for name in needs:
        shutil.copytree(workspace / name, scratch / name, symlinks=True)
    (scratch / "root").mkdir()
    os.environ |= {
        "DOMAINWISE_DATA": str(scratch / "root"),
        "DOMAINWISE_CACHE": str(scratch / "cache"),
        "XDG_CACHE_HOME": str(scratch / "home"),
        "MPLCONFIGDIR": str(workspace / "matplotlib"),
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
        "NO_COLOR": "1",
    }


def run_command(arguments: Sequence[str]) -> int:
    """A command in this process; its workers are forked, and handle signals as processes that were started do."""
    from domainwise.cli import main

    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL) and None)
    context = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda *_: context  # type: ignore[assignment]
    try:
        main(list(arguments))
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _read(one: Try, scratch: Path, status: int | None) -> Answer:
    def text(name: str) -> str:
        file = scratch / name
        return file.read_text(errors="replace").replace(str(scratch), "@") if file.exists() else ""

    content = "" if status else "\n".join(_content(scratch, name) for name in one.watch)
    return Answer(status, _without_times(text("..out")), text("..err"), content)


def _content(scratch: Path, name: str) -> str:
    top = scratch / name
    files = sorted(top.rglob("*")) if top.is_dir() else [top]
    return "\n".join(f"{file.relative_to(scratch)} {digest_of(file)}" for file in files if _is_result(file))


def _is_result(file: Path) -> bool:
    """Not what a command leaves on its way, nor what lies in a sweep's folder without being a run's result."""
    passing = file.name.startswith(".") or file.suffix in (".damaged", ".lock", ".tmp")
    return file.is_file() and not passing and file.name not in APART and file.parent.name != "plans"


def digest_of(file: Path) -> str:
    """Of what a file says: JSON without times and white space, anything else as it is."""
    data = file.read_bytes()
    with suppress(ValueError, RecursionError):
        if file.suffix == ".json":
            data = _without_times(data.decode()).encode()
        elif file.suffix == ".jsonl":
            data = "\n".join(map(_without_times, data.decode().splitlines())).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def _without_times(text: str) -> str:
    """JSON without what differs from one execution to the next; other text as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps(_timeless(value), sort_keys=True) if isinstance(value, (dict, list)) else text


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(item) for name, item in value.items() if name not in PASSING}
    return [_timeless(one) for one in value] if isinstance(value, list) else value
