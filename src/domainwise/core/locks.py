"""Claims: who is working on a run, so that no two processes or machines sharing a folder ever do the same run at once.

Claims on a folder are numbered files, `claim.1`, `claim.2`, ...; the highest number holds. A claim is made by creating
the next number exclusively, which exactly one contender can do, and only when the holder has let go or is dead: its
process is gone (on this machine) or its heartbeat has stopped (on another). Numbers are never reused while the run is
unfinished, so a holder that was taken for dead sees that it has been overtaken and stops.
"""

import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from domainwise.core.errors import UserError
from domainwise.core.files import temporary_beside

HEARTBEAT_SECONDS = 10.0
DEAD_SECONDS = 90.0
"""How long another machine's heartbeat may be silent."""


class RunLocked(Exception):
    """Somebody else is working on this run."""


@cache
def machine() -> str:
    """Where process numbers mean the same: a computer since its start, and on it a container with its own numbers."""
    boot, numbers = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    known = [boot.read_text().strip() if boot.exists() else "", str(numbers.readlink()) if numbers.exists() else ""]
    return "/".join([socket.gethostname(), *known])


def birth(pid: int) -> str | None:
    """When a process of this machine began (so that a recycled number is not taken for it), None if it is gone."""
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
    """The claim that holds, if its owner lives."""
    newest = _newest(folder)
    claim = folder / f"claim.{newest}"
    return claim if newest and _alive(claim) else None


class RunLock:
    """Within it, the run is ours; raises Busy on entering if it is somebody else's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder
        self._stop = threading.Event()

    def __enter__(self) -> "RunLock":
        newest = _newest(self.folder)
        if newest and _alive(self.folder / f"claim.{newest}"):
            raise RunLocked(f"{self.folder.name} is being trained by another process")
        self.path = self.folder / f"claim.{newest + 1}"
        owner = {"machine": machine(), "pid": os.getpid(), "birth": birth(os.getpid()), "token": secrets.token_hex(8)}
        try:
            with self.path.open("x") as file:
                json.dump(owner, file)
        except FileExistsError:
            raise RunLocked(f"{self.folder.name} has just been claimed by another process") from None
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def taken_over(self) -> bool:
        """Whether somebody took us for dead."""
        return self.folder / f"claim.{_newest(self.folder)}" != self.path

    def ensure_owned(self) -> None:
        """Before anything is written: raises Busy if somebody took us for dead."""
        if not self.folder.is_dir():
            raise UserError(f"{self.folder} was deleted while its run was being trained: start it again")
        if self.taken_over():
            raise RunLocked(f"{self.folder.name} was taken over by another process while this one was not heard of")

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
            with suppress(OSError), self.path.open("r+") as file:  # it may be gone, and is not made anew
                file.write("released")
                file.truncate()

    def forget(self) -> None:
        """Removes all claims: only for a run that has ended, which nobody will start again."""
        self._stop.set()
        for claim in self.folder.glob("claim.*"):
            claim.unlink(missing_ok=True)


def _newest(folder: Path) -> int:
    return max((int(c.suffix[1:]) for c in folder.glob("claim.*") if c.suffix[1:].isdecimal()), default=0)


def _alive(claim: Path) -> bool:
    try:
        text = claim.read_bytes()
        if text == b"released":
            return False
        try:
            owner = json.loads(text)
            if owner["machine"] == machine():
                return birth(owner["pid"]) == owner["birth"]
        except (ValueError, TypeError, KeyError):  # being written, or cut short by a crash: judged by its age
            pass
        return _folder_time(claim.parent) - claim.stat().st_mtime < DEAD_SECONDS
    except FileNotFoundError:
        return False


def _folder_time(folder: Path) -> float:
    """Now, by the clock of the machine that keeps the folder."""
    probe = temporary_beside(folder / "clock")
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
    except OSError:  # it may only be read
        return time.time()
    return now
