"""Locks on runs: no two processes, also of machines that share a folder, ever train the same run at once.

The locks of a run are numbered files in its folder, `claim.1`, `claim.2`, ...; the highest number holds. A process
takes the lock by creating the next number exclusively, which exactly one contender can do, and only when the holder has
released it or is dead: its process is gone (on this machine) or its heartbeat has stopped (on another). Numbers are
never reused while the run is unfinished, so a holder wrongly taken for dead sees the higher number and stops.
"""

import json
import logging
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from domainwise.core.errors import UserError
from domainwise.core.files import temporary_beside
from domainwise.core.parsing import Range, parse, read_file

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 90.0
"""A holder on another machine counts as dead after so long without a heartbeat."""
CLOCK_SECONDS = 600.0
"""A heartbeat that is further in the future than clocks differ is none."""

LARGEST_LOCK = 1 << 14

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Owner:
    """The content of a lock file."""

    machine: str
    pid: Annotated[int, Range(1, 1 << 31)]
    birth: str | None
    token: str


class RunLocked(Exception):
    """Another process is working on this run."""


@cache
def machine_id() -> str:
    """Identifies the scope of process ids: host name, boot and process namespace (containers have their own)."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    boot_id = boot.read_text().strip() if boot.exists() else ""
    return "/".join([socket.gethostname(), boot_id, str(namespace.readlink()) if namespace.exists() else ""])


def process_start_time(pid: int) -> str | None:
    """When a process of this machine started, None if it is gone: tells a process from a later one with its id."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else fields[19]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "unknown"


def lock_holder(folder: Path) -> Path | None:
    """The lock file in force, if its owner is alive."""
    newest = _newest(folder)
    path = folder / f"claim.{newest}"
    return path if newest and _alive(path) else None


class RunLock:
    """Context manager that holds the lock of a run; entering raises RunLocked if another process holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder
        self._stop = threading.Event()

    def __enter__(self) -> "RunLock":
        newest = _newest(self.folder)
        if newest and _alive(self.folder / f"claim.{newest}"):
            raise RunLocked(f"{self.folder.name} is being trained by another process")
        self.path = self.folder / f"claim.{newest + 1}"
        pid = os.getpid()
        owner = {"machine": machine_id(), "pid": pid, "birth": process_start_time(pid), "token": secrets.token_hex(8)}
        try:
            with self.path.open("x") as file:
                json.dump(owner, file)
        except FileExistsError:
            raise RunLocked(f"{self.folder.name} has just been locked by another process") from None
        except OSError:  # a full disk: an empty file would lock the run until it is stale
            self.path.unlink(missing_ok=True)
            raise
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def taken_over(self) -> bool:
        """Whether another process holds the lock now, having taken this one for dead."""
        return self.folder / f"claim.{_newest(self.folder)}" != self.path

    def ensure_owned(self) -> None:
        """Called before every write: raises RunLocked if another process has taken over."""
        if not self.folder.is_dir():
            raise UserError(f"{self.folder} was deleted while its run was being trained: start it again")
        if self.taken_over():
            raise RunLocked(f"{self.folder.name} was taken over by another process while this one did not respond")

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                os.utime(self.path)
            except FileNotFoundError:
                return
            except OSError:  # a shared folder out of reach for a while
                continue

    def __exit__(self, *_: object) -> None:
        if not self._stop.is_set():
            self._stop.set()
            with suppress(OSError), self.path.open("r+") as file:  # never created again
                file.write("released")
                file.truncate()

    def release_all(self) -> None:
        """Removes all lock files: only for a run that has ended, which nobody will start again."""
        self._stop.set()
        for path in self.folder.glob("claim.*"):
            path.unlink(missing_ok=True)


def _newest(folder: Path) -> int:
    """The highest number of a lock file, 0 without any."""
    return max((int(p.suffix[1:]) for p in folder.glob("claim.*") if p.suffix[1:].isdecimal()), default=0)


def _alive(lock_file: Path) -> bool:
    try:
        text = read_file(lock_file, "remove it", LARGEST_LOCK)
        if text == b"released":
            return False
        owner = parse(text, _Owner, lock_file, "remove it")
        if owner.machine == machine_id():
            return process_start_time(owner.pid) == owner.birth
    except FileNotFoundError:
        return False
    except UserError:  # being written, or cut short by a crash: judged by its age
        pass
    try:
        age = _folder_time(lock_file.parent) - lock_file.stat().st_mtime
        if age < -CLOCK_SECONDS:
            log.warning("%s is dated in the future: its heartbeat is ignored", lock_file)
        return -CLOCK_SECONDS <= age < STALE_SECONDS
    except FileNotFoundError:
        return False


def _folder_time(folder: Path) -> float:
    """Now, by the clock of the file server that holds the folder."""
    probe = temporary_beside(folder / "clock")
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
    except OSError:  # a read-only folder
        return time.time()
    return now
