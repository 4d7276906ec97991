"""The demo: does one perturbation per domain help on a background that no training image has?

BackgroundDigits, each of the four domains left out in turn. Hyper-parameters were fixed beforehand (the defaults, with
32 images per domain; eps = 2 and alpha = 0.2 for the adversarial methods); the step is selected by training-domain
validation.
"""

from collections.abc import Sequence
from pathlib import Path

from domainwise.data.catalogue import DATASETS
from domainwise.protocol.records import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve
from domainwise.protocol.statistics import selected
from domainwise.reports import pictures
from domainwise.sweeps.collection import experiment
from domainwise.sweeps.plan import Plan, plan_sweep
from domainwise.sweeps.tables import AccuracyTable, Group, table_of

DATASET = "BackgroundDigits"
QUICK = ("ERM", "IRM", "UAT", "DAT")
EVERY = (*QUICK, "AT")


def demo_plan(*, trials: int = 3, all_methods: bool = False, steps: int | None = None, seed: int = 0) -> Plan:
    fixed = {"batch_size": 32, "eps": 2.0, "alpha": 0.2}
    algorithms = EVERY if all_methods else QUICK
    return plan_sweep(DATASET, algorithms, draws=1, trials=trials, steps=steps, seed=seed, hparams=fixed)


def demo_table(runs: Sequence[Run], out: Path) -> AccuracyTable:
    curves = [Curve.of(run, RunFolder(out, run).read()[0]) for run in runs]
    group = Group(experiment(runs[0]), tuple(curve for curve in curves if curve.steps))
    return table_of(group, selected(group.curves, "training-domain"), "training-domain")


def draw_pictures(runs: Sequence[Run], out: Path) -> list[Path]:
    """Sample images of each domain, and the perturbations that DAT learned in its first run that is done."""
    environments = DATASETS[DATASET].load()
    written = [out / "samples.png"]
    pictures.domain_samples(environments, written[0])
    folders = [RunFolder(out, run) for run in runs if run.algorithm == "DAT"]
    if folder := next((folder for folder in folders if folder.model_file.exists()), None):
        written.append(out / "perturbations.png")
        delta = folder.load_model()["delta"]
        pictures.perturbations(environments, folder.run.train_domains, delta, written[1])
    return written
