"""Several trainings in one process: each makes a step in every round, on a GPU each on a stream of its own."""

from collections.abc import Iterator
from typing import Literal

from domainwise.core.locks import RunLocked
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.engine.devices import pick_device
from domainwise.engine.interrupt import Interruption
from domainwise.engine.train import Interrupted, OutOfMemory, Training, training
from domainwise.protocol.records import Status
from domainwise.protocol.runs import Run
from domainwise.sweep.events import Settings, failed

News = int | Status | Literal["elsewhere", "crowded"]
"""A run has made this step, has ended, is somebody else's, or did not fit the device beside the others."""


class Turns:
    """The runs in progress. What goes wrong with one is told of that one, and the others go on."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.interruption = Interruption()
        self.trainings: dict[Run, Training] = {}
        self.data: dict[tuple[str, int], Environments] = {}

    def take_in(self, run: Run) -> None:
        self.trainings[run] = self._training(run)

    def _training(self, run: Run) -> Training:
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
        """On the device, once for all runs of a dataset; the last dataset is kept."""
        key = (run.dataset, run.image_size)
        if key not in self.data:
            loaded = find_dataset(run.dataset).load(self.settings.data_root, run.image_size)
            self.data = {key: loaded.to(pick_device(self.settings.device))}
        return self.data[key]

    def stop(self) -> None:
        """Lets every run save a checkpoint after its next step, and leave."""
        self.interruption.requested = True

    @property
    def over(self) -> bool:
        return self.interruption.requested and not self.trainings

    def round(self) -> Iterator[tuple[Run, News]]:
        """A step of every run, with the news of each."""
        for run in list(self.trainings):
            news = self._advance(run)
            if not isinstance(news, int):
                del self.trainings[run]
            if news is not None:
                yield run, news

    def _advance(self, run: Run) -> News | None:
        """One step; nothing is told of a run that was interrupted."""
        try:
            return next(self.trainings[run])
        except StopIteration as end:
            return end.value.status
        except Interrupted:
            return None
        except RunLocked:
            return "elsewhere"
        except OutOfMemory as error:
            return "crowded" if len(self.trainings) > 1 else failed(self.settings.out, run, error)
        except Exception as error:
            return failed(self.settings.out, run, error)
