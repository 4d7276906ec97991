"""Runs on a Slurm cluster: one job per run, submitted by submitit, watched by squeue and through the shared folder.

squeue is asked, not sacct: clusters without accounting have no sacct that answers.
"""

import contextlib
import hashlib
import io
import os
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

from domainwise.core.errors import UserError
from domainwise.protocol.runs import Run
from domainwise.sweep.cluster import GRACE_SECONDS, Over, Refused, execute_on, train_task
from domainwise.sweep.events import Event, Settings

POLL_SECONDS = 5.0
CAPACITY = 200
"""Jobs in the queue at once: Slurm's schedulers are shared."""
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
}
"""States that a job does not leave; one that is queued again is pending."""


class Queued(NamedTuple):
    """A job as Slurm knows it."""

    state: str
    name: str


class Silent(Exception):
    """Slurm does not answer, and what it says instead."""


def queue() -> dict[str, Queued]:
    """The user's jobs by number, those included that ended a short while ago."""
    command = ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%j"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Silent(str(error)) from None
    if answer.returncode:
        raise Silent(_last_line(answer.stderr))
    rows = (line.split("|", 2) for line in answer.stdout.splitlines())
    return {number: Queued(state, name) for number, state, name in rows}


def train_job(run: Run, settings: Settings) -> None:
    """What a job does: `train_task`, for which the warning before the time limit is a request to save and stop."""
    import submitit

    warning = signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]
    signal.signal(warning, lambda *_: signal.raise_signal(signal.SIGTERM))
    train_task(run, settings)


class SlurmCluster:
    """One job per run. A job that vanishes (cancelled, preempted, node failure, time limit) is noticed.

    Jobs are named after their folder and run, so that a driver finds those that an earlier one left in the queue.
    """

    poll_seconds = POLL_SECONDS
    capacity = CAPACITY

    def __init__(self, settings: Settings, parameters: Mapping[str, Any]) -> None:
        try:
            import submitit
        except ImportError:
            raise UserError("--on slurm needs submitit: pip install 'domainwise[slurm]'") from None
        self.folder = settings.out.absolute() / "jobs"
        self.refusals = (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError)
        try:
            self.executor = submitit.AutoExecutor(folder=self.folder, cluster="slurm")
            self.executor.update_parameters(tasks_per_node=1, **parameters)
            queued = queue()
        except RuntimeError:
            raise UserError("--on slurm: no Slurm here (no srun); run this on a login node of the cluster") from None
        except Silent as error:
            raise UserError(f"--on slurm: Slurm does not answer ({error})") from None
        except (AssertionError, TypeError, NameError, ValueError) as error:
            raise UserError(f"--slurm: {' '.join(str(error).split())}") from None
        self.left = {name: number for number, (state, name) in queued.items() if state not in ENDED}
        self.jobs: dict[str, Run] = {}

    def name(self, run: Run) -> str:
        return f"domainwise-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]}-{run.id}"

    def adopt(self, run: Run) -> bool:
        number = self.left.pop(self.name(run), None)
        if number is not None:
            self.jobs[number] = run
        return number is not None

    def submit(self, run: Run, settings: Settings) -> None:
        self.executor.update_parameters(name=self.name(run))
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit repeats there what the exception says
                job = self.executor.submit(train_job, run, settings)
        except self.refusals as error:
            raise Refused(f"--on slurm: the job was refused ({_last_line(str(error))})") from None
        self.jobs[job.job_id] = run

    def finished(self) -> list[Over]:
        try:
            queued = queue()
        except Silent:
            return []
        over = []
        for number, run in list(self.jobs.items()):
            state = queued[number].state if number in queued else "GONE"
            if number not in queued or state in ENDED:
                del self.jobs[number]
                lost = "" if state == "COMPLETED" else self._reason(number, state)
                over.append(Over(run, lost, cancelled=state == "CANCELLED"))
        return over

    def _reason(self, number: str, state: str) -> str:
        """What became of a job, in words; of one that failed by itself, with the last line of its log."""
        log = self.folder / f"{number}_0_log.err"
        said = _last_line(log.read_text(errors="replace")) if state == "FAILED" and log.exists() else ""
        return f"job {number} {state.lower().replace('_', ' ')}" + (f" ({said})" if said else "")

    def close(self) -> None:
        if not self.jobs:
            return
        subprocess.run(["scancel", *self.jobs], capture_output=True, check=False)
        deadline = time.monotonic() + GRACE_SECONDS
        while self.jobs and time.monotonic() < deadline:
            self.finished()
            time.sleep(min(1.0, self.poll_seconds))


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def execute(runs: Sequence[Run], settings: Settings, parameters: Mapping[str, Any] | None = None) -> Generator[Event]:
    """Trains all runs that have not ended yet as Slurm jobs; `parameters` are submitit's (timeout_min, ...)."""
    gpu = {"gpus_per_node": 1} if settings.device == "cuda" and not _asks_for_gpus(parameters or {}) else {}
    wanted = {"timeout_min": 24 * 60, **gpu, **(parameters or {})}
    return execute_on(SlurmCluster(settings, wanted), runs, settings)


def _asks_for_gpus(parameters: Mapping[str, Any]) -> bool:
    return any("gpu" in name or name == "slurm_gres" for name in parameters)
