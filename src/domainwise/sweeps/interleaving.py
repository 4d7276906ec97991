"""Several trainings in one process: each makes one step per round, on a GPU each on its own stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from domainwise.core.errors import STORAGE, StorageError
from domainwise.core.locks import RunLocked
from domainwise.data.augment import for_augmentation
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.engine.devices import pick_device
from domainwise.engine.interrupt import Interruption
from domainwise.engine.train import Interrupted, OutOfMemory, Training, training
from domainwise.protocol.records import Status
from domainwise.protocol.runs import Run
from domainwise.sweeps.events import Settings, mark_failed


@dataclass(frozen=True)
class DiskRefused:
    """The disk does not take what a run is to save, and the message that says so."""

    message: str


RunUpdate = int | Status | DiskRefused | Literal["locked", "out of memory"]
"""A run has made this step, has ended, cannot be saved, is locked by another process, or did not fit beside others."""


class InterleavedRuns:
    """The runs in progress. An error ends the run that raised it; the others go on."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.interruption = Interruption()
        self.trainings: dict[Run, Training] = {}
        self.data: dict[tuple[str, int, str], Environments] = {}

    def add(self, run: Run) -> None:
        self.trainings[run] = self._training(run)

    def _training(self, run: Run) -> Training:
        """A generator, so that an error while the data is loaded is one of the run."""
        settings = self.settings
        steps = training(
            run,
            settings.out,
            self.interruption,
            device=settings.device,
            data_root=settings.data_root,
            environments=self._data(run),
            retry=settings.retry,
            log_to=settings.log_to,
        )
        return (yield from steps)

    def _data(self, run: Run) -> Environments:
        """The dataset on the device, shared by its runs; only the latest dataset is kept."""
        key = (run.dataset, run.image_size, run.augmentation)
        if key not in self.data:
            loaded = find_dataset(run.dataset).load(self.settings.data_root, run.image_size)
            self.data = {key: for_augmentation(run.augmentation, loaded).to(pick_device(self.settings.device))}
        return self.data[key]

    def stop(self) -> None:
        """Makes every run save a checkpoint after its next step, and end."""
        self.interruption.requested = True

    @property
    def stopped(self) -> bool:
        return self.interruption.requested and not self.trainings

    def step_all(self) -> Iterator[tuple[Run, RunUpdate]]:
        """One step of every run, with an update for each but those that were interrupted."""
        for run in list(self.trainings):
            update = self._step(run)
            if not isinstance(update, int):
                del self.trainings[run]
            if update is not None:
                yield run, update

    def _step(self, run: Run) -> RunUpdate | None:
        """A disk that is full ends no run: all of them can be continued."""
        try:
            return self._outcome(run)
        except StorageError as error:
            return DiskRefused(str(error))
        except OSError as error:
            if error.errno not in STORAGE:
                raise
            return DiskRefused(str(StorageError.of(error, self.settings.out)))

    def _outcome(self, run: Run) -> RunUpdate | None:
        try:
            return next(self.trainings[run])
        except StopIteration as end:
            return end.value.status
        except Interrupted:
            return None
        except RunLocked:
            return "locked"
        except StorageError:
            raise
        except OutOfMemory as error:
            return "out of memory" if len(self.trainings) > 1 else self._failed(run, error)
        except Exception as error:
            return self._failed(run, error)

    def _failed(self, run: Run, error: Exception) -> Status:
        return mark_failed(self.settings.out, run, error, self.settings.device)
