"""Estimates how long a sweep takes, from a few real steps of each of its algorithms."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from domainwise.algorithms import ALGORITHMS
from domainwise.core.threads import cpu_threads
from domainwise.data.find import find_dataset
from domainwise.engine.devices import now, pick_device
from domainwise.engine.evaluation import evaluate, splits_to_evaluate
from domainwise.engine.session import Session
from domainwise.engine.swad import validation_interval
from domainwise.protocol.runs import Run
from domainwise.protocol.spaces import HParams
from domainwise.sweeps.plan_run import search_space

STEPS = 3
QUICK_STEP = 1e-3
"""Seconds per image of a batch, below which a CPU measures every algorithm: small networks differ in what they cost."""
LONG_STEP = 1.0
"""Seconds from which a CPU's first step suffices; a GPU's first step also prepares the next."""
EVALUATED_IMAGES = 100
"""Images of each split that are evaluated; a whole evaluation costs in proportion."""
LARGE_IMAGE, FEW_IMAGES = 64, 2
"""Of images with more pixels a side, a CPU first tries so few per domain and split: a whole batch may take minutes."""


def estimate_seconds(runs: Sequence[Run], device: str, data_root: Path | None, *, by_passes: bool = False) -> float:
    """The sum over all runs of the time on their threads, or on one GPU; see StepTimes for `by_passes`."""
    return StepTimes(device, data_root, by_passes).estimate(runs)


class StepTimes:
    """Measures each algorithm once, however many sets of runs are estimated.

    It is timed at its smallest batch, or a smaller one if that takes long; the time of a step is taken to be
    proportional to its batch, which holds for a busy device. `by_passes` ERM alone is measured where its steps are not
    quick, and other algorithms are taken to cost as many times as much as they have `passes`: there may be many.
    """

    def __init__(self, device: str, data_root: Path | None, by_passes: bool = False) -> None:
        self.device, self.data_root, self.by_passes = pick_device(device), data_root, by_passes
        self.costs: dict[tuple[str, str, str, int], tuple[float, float]] = {}

    def estimate(self, runs: Sequence[Run]) -> float:
        """The sum over all runs of the time on their threads, or on one GPU."""
        total = 0.0
        for run in sorted(runs, key=lambda run: int(run.hparams["batch_size"] or 1)):
            by_passes = self.by_passes and not self._is_quick(run)
            per_image, per_evaluation = self._measured(run, "ERM" if by_passes else run.algorithm)
            passes = ALGORITHMS[run.algorithm].passes if by_passes else 1.0
            images = passes * int(run.hparams["batch_size"] or 1)
            total += run.steps * per_image * images + evaluations(run) * per_evaluation
        return total

    def _is_quick(self, run: Run) -> bool:
        """Whether a CPU makes a step of ERM so quickly that every algorithm can be measured."""
        return self.device.type == "cpu" and self._measured(run, "ERM")[0] < QUICK_STEP

    def _measured(self, run: Run, algorithm: str) -> tuple[float, float]:
        """Seconds per image of a batch, and per evaluation, of the run's algorithm or of ERM in its place."""
        key = (run.dataset, algorithm, run.network, run.threads)
        if key not in self.costs:
            with cpu_threads(run.threads):
                self.costs[key] = _measure(
                    run if algorithm == run.algorithm else _as_erm(run), self.device, self.data_root
                )
        return self.costs[key]


def _as_erm(run: Run) -> Run:
    """A training of the same network on the same data and batches."""
    hparams = {name: run.hparams[name] for name in search_space("ERM", find_dataset(run.dataset).scale)}
    return replace(run, algorithm="ERM", hparams=hparams, average="")


def begun(hparams: HParams) -> HParams:
    """Hyper-parameters with which the first step is as the later ones: methods may begin as ERM, or more cheaply."""
    return {name: 0 for name in ("anneal", "head_steps") if name in hparams}


def evaluations(run: Run) -> float:
    """Of the last and the averaged weights; a validation of SWAD, on some of the splits, is at most one."""
    regular = len(range(0, run.steps, run.evaluate_every)) + 1
    if run.average == "swad":
        return regular + 1 + len(range(0, run.steps, validation_interval(run)))
    return 2 * regular if run.average else regular


def _measure(run: Run, device: torch.device, data_root: Path | None) -> tuple[float, float]:
    """Seconds per image of a batch, and per evaluation."""
    data = find_dataset(run.dataset).load(data_root, run.image_size)
    on_cpu, batch_size = device.type == "cpu", int(run.hparams["batch_size"] or 1)
    try_few = on_cpu and run.image_size > LARGE_IMAGE and batch_size > FEW_IMAGES
    sizes = [FEW_IMAGES, batch_size] if try_few else [batch_size]
    with torch.random.fork_rng():
        for batch in sizes:
            hparams = run.hparams | begun(run.hparams) | {"batch_size": batch}
            # random weights are as fast
            session = Session(replace(run, hparams=hparams, weights="", start="", steps=STEPS), data, device)
            step = _timed(session, 1, device)
            if on_cpu and step >= LONG_STEP:
                break
            step = _timed(session, STEPS, device)
        parts = splits_to_evaluate(run, session.environments)
        sample = {part: rows[: EVALUATED_IMAGES if batch == batch_size else FEW_IMAGES] for part, rows in parts.items()}
        began = now(device)
        evaluate(session.algorithm, session.environments, sample, run.train_domains)
        share = sum(map(len, sample.values())) / sum(map(len, parts.values()))
        return step / batch, (now(device) - began) / share


def _timed(session: Session, steps: int, device: torch.device) -> float:
    """Seconds per step."""
    began = now(device)
    for _ in range(steps):
        session.step()
    return (now(device) - began) / steps
