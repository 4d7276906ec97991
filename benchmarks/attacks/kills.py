"""A small sweep, killed at a random moment and continued: its records must be those of an undisturbed one."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from attacks.tries import Outcome
from attacks.workspace import SMALL, photos

PATIENCE = 180.0
"""Seconds until a sweep counts as a hang."""
WAYS = ("SIGKILL to the driver", "SIGKILL to a worker", "SIGTERM", "SIGINT to all", "SIGHUP", "SIGKILL to all")


def arguments(workspace: Path, out: Path) -> list[str]:
    length = (
        "--hparams",
        "1",
        "--trials",
        "2",
        "--steps",
        "121",
        "--evaluate-every",
        "20",
        "--workers",
        "2",
        "--retry",
    )
    methods = ("--algorithms", "ERM,DAT", "--track", "penalties")
    sweep = ("sweep", "--data", photos(workspace), *methods, *length, *SMALL, "--out", str(out))
    return [sys.executable, "-m", "domainwise", *sweep]


class Sweep:
    """A sweep in processes of its own."""

    def __init__(self, workspace: Path, out: Path) -> None:
        environment = {**os.environ, "DOMAINWISE_CACHE": str(workspace / "cache"), "OMP_NUM_THREADS": "1"}
        self.log = out.with_suffix(".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                arguments(workspace, out), stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def members(self) -> list[int]:
        """The processes of its session that are alive, but the driver."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, IndexError, ValueError):
                fields = stat.read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == self.process.pid and fields[0] != "Z":
                    found.append(int(stat.parent.name))
        return sorted(set(found) - {self.process.pid})

    def workers(self) -> list[int]:
        """Processes that train, not the resource tracker of multiprocessing."""
        found = []
        for pid in self.members():
            with suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def wait(self, seconds: float) -> int | None:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        for pid in (self.process.pid, *self.members()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def records(out: Path) -> dict[str, Any]:
    """Every record, penalty and status of every run in their order, without times, and the digests of the models."""
    from attacks.tries import digest_of

    found: dict[str, Any] = {}
    for file in sorted(out.glob("*/*")):
        if file.suffix == ".jsonl":
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            found[str(file.relative_to(out))] = [
                {k: v for k, v in row.items() if k in ("run", "step", "domain", "split", "accuracy", "loss", "status")}
                for row in rows
            ]
        elif file.suffix == ".safetensors":
            found[str(file.relative_to(out))] = digest_of(file)
    return found


def quiet_sweep(workspace: Path, place: Path) -> tuple[dict[str, Any], float]:
    """The records of an undisturbed sweep, and the seconds it took."""
    out = place / "quiet"
    began = time.monotonic()
    sweep = Sweep(workspace, out)
    if sweep.wait(PATIENCE):
        sweep.end()
        raise SystemExit(f"the undisturbed sweep failed:\n{sweep.log.read_text()}")
    return records(out), time.monotonic() - began


def kill(number: int, seed: int, workspace: Path, place: Path, expected: dict[str, Any], seconds: float) -> Outcome:
    """One sweep, disturbed once or twice and then continued."""
    luck = random.Random(f"{seed}/kills/{number}")
    way = WAYS[number % len(WAYS)]
    out = place / f"kill{number}"
    moments = [luck.uniform(0.15, 1.0) * seconds for _ in range(luck.choice((1, 1, 2)))]
    what = f"{way} after {', '.join(f'{moment:.1f} s' for moment in moments)}"
    began = time.monotonic()
    problem = ""
    for moment in moments:
        problem = problem or _disturbed(Sweep(workspace, out), way, moment, luck)
    last = Sweep(workspace, out)
    status = last.wait(PATIENCE)
    left = last.members() if status is None else []
    last.end()
    text = last.log.read_text(errors="replace")
    if problem or status is None:
        outcome = "hang"
        problem = problem or f"the sweep did not end within {PATIENCE:.0f} s; {len(left)} processes"
    elif "Traceback (most recent call last)" in text:
        outcome = "traceback"
    elif status or records(out) != expected:
        outcome = "lost"
    else:
        outcome = "same"
    line = problem or (text.strip().splitlines() or [""])[-1][:300]
    if outcome == "same":
        shutil.rmtree(out, ignore_errors=True)
    return Outcome(
        "kills", number, way, what, "domainwise sweep", outcome, line, round(time.monotonic() - began, 2), text
    )


def _disturbed(sweep: Sweep, way: str, moment: float, luck: random.Random) -> str:
    """Sends the signal; what is wrong if processes stay."""
    if sweep.wait(moment) is not None:
        return ""
    if way == "SIGKILL to a worker":
        if workers := sweep.workers():
            with suppress(ProcessLookupError):
                os.kill(luck.choice(workers), signal.SIGKILL)
        return "" if sweep.wait(PATIENCE) is not None else "the sweep went on for ever after the death of a worker"
    number = getattr(signal, way.split()[0])
    with suppress(ProcessLookupError):
        (os.killpg if way.endswith("to all") else os.kill)(sweep.process.pid, number)
    ended = sweep.wait(PATIENCE / 3)
    deadline = time.monotonic() + PATIENCE / 3
    while sweep.members() and time.monotonic() < deadline:
        time.sleep(0.2)
    left = len(sweep.members())
    sweep.end()
    if ended is None:
        return f"the driver did not end within {PATIENCE / 3:.0f} s of {way}"
    return f"{left} worker processes stayed after {way}" if left else ""
