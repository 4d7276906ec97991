"""Several trainings in one process: each makes a step in every round, on a GPU each on a stream of its own."""

from collections.abc import Iterator
from typing import Literal

from domainwise.claims import Busy
from domainwise.engine.interrupt import Interruption
from domainwise.engine.train import Interrupted, Training, training
from domainwise.records import Status
from domainwise.runs import Run
from domainwise.sweep.events import Settings, failed

News = int | Status | Literal["elsewhere"]
"""A run has made this step, has ended, or is somebody else's."""


class Turns:
    """The runs in progress. What goes wrong with one is told of that one, and the others go on."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.interruption = Interruption()
        self.trainings: dict[Run, Training] = {}

    def take_in(self, run: Run) -> None:
        self.trainings[run] = training(
            run,
            self.settings.out,
            self.interruption,
            device=self.settings.device,
            data_root=self.settings.data_root,
            retry=self.settings.retry,
            log_to=self.settings.log_to,
        )

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
        except Busy:
            return "elsewhere"
        except Exception as error:
            return failed(self.settings.out, run, error)
