"""The main job: does one perturbation per domain help on a background nobody has seen?

BackgroundDigits, each of the four domains left out in turn. Hyper-parameters were fixed beforehand (the protocol's
defaults, with 32 images per domain; eps = 2 and alpha = 0.2 for the adversarial methods); the step is chosen by
training-domain validation.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from domainwise.data.catalogue import DATASETS
from domainwise.protocol.records import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve
from domainwise.protocol.spaces import Value
from domainwise.protocol.statistics import selected
from domainwise.report import pictures
from domainwise.sweep.collection import experiment
from domainwise.sweep.events import Event, Settings
from domainwise.sweep.local import execute
from domainwise.sweep.plan import plan_run
from domainwise.sweep.tables import AccuracyTable, Group, table_of

DATASET = "BackgroundDigits"
_BATCH: Mapping[str, Value] = {"batch_size": 32}
_BALL: Mapping[str, Value] = {**_BATCH, "eps": 2.0, "alpha": 0.2}
QUICK = {"ERM": _BATCH, "IRM": _BATCH, "UAT": _BALL, "DAT": _BALL}
EVERY = {**QUICK, "AT": _BALL}


@dataclass(frozen=True)
class Demo:
    """The plan and where it leaves its results."""

    runs: tuple[Run, ...]
    out: Path
    algorithms: tuple[str, ...]

    @classmethod
    def plan(
        cls, out: Path, *, trials: int = 3, all_methods: bool = False, steps: int | None = None, seed: int = 0
    ) -> "Demo":
        algorithms = EVERY if all_methods else QUICK
        runs = [
            plan_run(DATASET, name, [domain], hparams=hparams, trial=trial, steps=steps, seed=seed)
            for trial in range(trials)
            for domain in DATASETS[DATASET].domains
            for name, hparams in algorithms.items()
        ]
        return cls(tuple(runs), out, tuple(algorithms))

    def execute(self, *, workers: int | None = None, device: str = "auto") -> Generator[Event]:
        return execute(self.runs, Settings(self.out, device, retry=True), workers)

    def table(self) -> AccuracyTable:
        curves = [Curve.of(run, RunFolder(self.out, run).read()[0]) for run in self.runs]
        group = Group(experiment(self.runs[0]), tuple(curve for curve in curves if curve.steps))
        return table_of(group, selected(group.curves, "training-domain"), "training-domain")

    def draw(self) -> list[Path]:
        """Sample images of each domain, and the perturbations DAT learned in its first run that ended well."""
        environments = DATASETS[DATASET].load()
        written = [self.out / "samples.png"]
        pictures.domain_samples(environments, written[0])
        trained = [RunFolder(self.out, run) for run in self.runs if run.algorithm == "DAT"]
        if folder := next((folder for folder in trained if folder.model_file.exists()), None):
            written.append(self.out / "perturbations.png")
            delta = folder.load_model()["delta"]
            pictures.perturbations(environments, folder.run.train_domains, delta, written[1])
        return written
