"""Runs on a Slurm cluster: one job per run, submitted by submitit, watched by squeue and through the shared folder.

squeue rather than sacct, which clusters without accounting do not have.
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

from domainwise.core.errors import UserError, one_line
from domainwise.protocol.runs import Run
from domainwise.sweeps.cluster import GRACE_SECONDS, SubmissionRefused, TaskEnded, execute_on, train_task
from domainwise.sweeps.events import Event, Settings

POLL_SECONDS = 5.0
CAPACITY = 200
"""Jobs in the queue at once: other users share the scheduler."""
ENDED_STATES = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
}
"""Final states; a job that is queued again is pending."""


class QueuedJob(NamedTuple):
    state: str
    name: str


class SlurmUnavailable(Exception):
    """squeue fails, and its last words."""


def queued_jobs() -> dict[str, QueuedJob]:
    """The user's jobs by number, including those that ended a short while ago."""
    command = ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%j"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmUnavailable(str(error)) from None
    if answer.returncode:
        raise SlurmUnavailable(_last_line(answer.stderr))
    rows = (line.split("|", 2) for line in answer.stdout.splitlines())
    return {number: QueuedJob(state, name) for number, state, name in rows}


def train_job(run: Run, settings: Settings) -> None:
    """The body of a job: `train_task`, which saves and stops at the warning signal before the time limit."""
    import submitit

    warning = signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]
    signal.signal(warning, lambda *_: signal.raise_signal(signal.SIGTERM))
    train_task(run, settings)


class SlurmCluster:
    """One job per run. Lost jobs (cancelled, preempted, node failure, time limit) are noticed.

    Jobs are named after their folder and run, so that a driver finds those that an earlier one left in the queue.
    """

    poll_seconds = POLL_SECONDS
    capacity = CAPACITY

    def __init__(self, settings: Settings, parameters: Mapping[str, Any]) -> None:
        try:
            import submitit
        except ImportError:
            raise UserError("submitit is not installed: pip install 'domainwise[slurm]'", argument="on") from None
        self.folder = settings.out.absolute() / "jobs"
        self.refusals = (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError)
        try:
            self.executor = submitit.AutoExecutor(folder=self.folder, cluster="slurm")
            self.executor.update_parameters(tasks_per_node=1, **parameters)
            queued = queued_jobs()
        except RuntimeError:
            raise UserError("no Slurm here (no srun): use a login node of the cluster", argument="on") from None
        except SlurmUnavailable as error:
            raise UserError(f"Slurm does not answer ({error})", argument="on") from None
        except (AssertionError, TypeError, NameError, ValueError) as error:
            raise UserError(f"Slurm parameters: {one_line(error, longest=1000)}", argument="slurm") from None
        self.leftover = {name: number for number, (state, name) in queued.items() if state not in ENDED_STATES}
        self.jobs: dict[str, Run] = {}

    def name(self, run: Run) -> str:
        return f"domainwise-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]}-{run.id}"

    def ready(self) -> bool:
        return True  # the queue waits

    def adopt(self, run: Run) -> bool:
        number = self.leftover.pop(self.name(run), None)
        if number is not None:
            self.jobs[number] = run
        return number is not None

    def submit(self, run: Run, settings: Settings) -> None:
        self.executor.update_parameters(name=self.name(run))
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints the exception there too
                job = self.executor.submit(train_job, run, settings)
        except self.refusals as error:
            raise SubmissionRefused(f"Slurm refused the job ({_last_line(str(error))})") from None
        self.jobs[job.job_id] = run

    def finished(self) -> list[TaskEnded]:
        try:
            queued = queued_jobs()
        except SlurmUnavailable:
            return []
        ended = []
        for number, run in list(self.jobs.items()):
            state = queued[number].state if number in queued else "GONE"
            if number not in queued or state in ENDED_STATES:
                del self.jobs[number]
                lost = "" if state == "COMPLETED" else self._reason(number, state)
                ended.append(TaskEnded(run, lost, cancelled=state == "CANCELLED"))
        return ended

    def _reason(self, number: str, state: str) -> str:
        """How a job was lost, in words; for one that failed by itself with the last line of its log."""
        log = self.folder / f"{number}_0_log.err"
        last_line = _last_line(log.read_text(errors="replace")) if state == "FAILED" and log.exists() else ""
        return f"job {number} {state.lower().replace('_', ' ')}" + (f" ({last_line})" if last_line else "")

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
    """Trains all runs that have not ended yet as Slurm jobs and yields their events.

    `parameters` are submitit's (timeout_min, ...).
    """
    settings.check(runs, here=False)
    parameters = parameters or {}
    requests_gpus = any("gpu" in name or name == "slurm_gres" for name in parameters)
    gpu = {"gpus_per_node": 1} if settings.device == "cuda" and not requests_gpus else {}
    cpus = {"cpus_per_task": threads} if (threads := max((run.threads for run in runs), default=1)) > 1 else {}
    return execute_on(SlurmCluster(settings, {"timeout_min": 24 * 60, **gpu, **cpus, **parameters}), runs, settings)
