"""Runs on a Slurm cluster, by submitit: one job per run, watched through the shared folder."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from domainwise.errors import UserError
from domainwise.runs import Run
from domainwise.sweep.cluster import execute_on, train_task
from domainwise.sweep.events import Event, Settings

CAPACITY = 200
"""Jobs in the queue at once: Slurm's schedulers are shared."""


class SlurmCluster:
    """One job per run; a job that vanishes (node failure, preemption, time limit) is noticed and submitted again."""

    @property
    def capacity(self) -> int:
        return CAPACITY

    def __init__(self, settings: Settings, parameters: Mapping[str, Any], kind: str | None = None) -> None:
        try:
            import submitit
        except ImportError:
            raise UserError("--on slurm needs submitit: pip install 'domainwise[slurm]'") from None
        try:
            self.executor = submitit.AutoExecutor(folder=settings.out / "jobs", cluster=kind)
            self.executor.update_parameters(name="domainwise", tasks_per_node=1, **parameters)
        except RuntimeError as error:
            raise UserError(f"--on slurm: no Slurm here ({error}); run this on a login node of the cluster") from None
        except (TypeError, NameError, ValueError) as error:
            raise UserError(f"--slurm: {error}") from None
        self.jobs: dict[str, tuple[Any, Run]] = {}

    def submit(self, run: Run, settings: Settings) -> None:
        job = self.executor.submit(train_task, run, settings)
        self.jobs[job.job_id] = (job, run)

    def finished(self) -> list[tuple[Run, str | None]]:
        over = [(key, job, run) for key, (job, run) in self.jobs.items() if job.done()]
        result = []
        for key, job, run in over:
            del self.jobs[key]
            error = job.exception()
            result.append((run, None if error is None else f"job {key}: {str(error).splitlines()[0]}"))
        return result

    def close(self) -> None:
        for job, _ in self.jobs.values():
            job.cancel()


def execute(
    runs: Sequence[Run], settings: Settings, parameters: Mapping[str, Any] | None = None, kind: str | None = "slurm"
) -> Generator[Event]:
    """Trains all runs that have not ended yet as Slurm jobs; `parameters` are submitit's (timeout_min, ...)."""
    yield from execute_on(SlurmCluster(settings, {"timeout_min": 24 * 60, **(parameters or {})}, kind), runs, settings)
