"""The search for a model to deliver: every candidate is trained with each domain left out in turn, and tested on it.

A candidate is an algorithm with values for its hyper-parameters. All trials of a candidate share its values, unlike
those of a draw of `domainwise sweep`. A candidate is chosen by its accuracy on domains it never saw, not on samples
like those it was trained on, because that is how the model will be used.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.data.sources.saved import save_environments, saved_dataset, with_fingerprint
from domainwise.engine.evaluation import check_groups
from domainwise.protocol.metrics import ACCURACY, WORST_GROUP, Metric
from domainwise.protocol.options import TrainingOptions
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve, Floats, Method
from domainwise.protocol.spaces import HParams
from domainwise.sweeps.events import Event, Settings
from domainwise.sweeps.launch import launch
from domainwise.sweeps.plan import Plan, plan_sweep
from domainwise.sweeps.reading import read_curves


def plan_candidates(
    data: Environments | Path | str,
    algorithms: str | Sequence[str],
    options: TrainingOptions,
    candidates: int,
    trials: int,
    test_domains: Sequence[str | int] | str | int,
    out: Path,
) -> Plan:
    """The search for a model of this data. Data in memory is saved in `out`, so that worker processes can load it."""
    if isinstance(data, Environments):
        named = with_fingerprint(data)
        dataset = saved_dataset(save_environments(named, out / named.name)).name
    else:
        dataset = find_dataset(str(data)).name
    names = (algorithms,) if isinstance(algorithms, str) else tuple(algorithms)
    domains = [str(d) for d in ([test_domains] if isinstance(test_domains, (str, int)) else test_domains)]
    return plan_sweep(
        dataset, names, options, draws=candidates, trials=trials, test_domains=domains, search="candidates"
    )


def check_metric(plan: Plan, metric: Metric, data_root: Path | None) -> None:
    """Raises UserError if the runs of a search would not know this metric, before they are trained."""
    if metric == WORST_GROUP:
        runs = plan.runs()
        check_groups(runs, find_dataset(plan.dataset).load(data_root, runs[0].image_size))


def train_candidates(plan: Plan, settings: Settings, workers: int | None, progress: Callable[[Event], None]) -> None:
    """Trains the missing runs of a search, several at once in worker processes; their records lie in `settings.out`."""
    events = launch("local", plan.runs(), settings, workers=workers)
    plan.save(settings.out)
    with closing(events):
        for event in events:
            progress(event)


def finished_curves(runs: Sequence[Run], out: Path) -> list[Curve]:
    """The curves of the runs that are done, of their last and of their averaged weights."""
    folders = [RunFolder(out, run) for run in runs]
    done = [folder for folder in folders if (status := folder.status()) is not None and status.status == "done"]
    return [curve for folder in done for curve in read_curves(folder)]


@dataclass(frozen=True)
class Candidate:
    """An algorithm with values for its hyper-parameters, its best number of steps, and its accuracy on unseen domains.

    Candidate number 0 of an algorithm has the default values. With an `average`, the averaged weights of the same
    trainings are a candidate of their own.
    """

    algorithm: str
    number: int
    hparams: HParams
    steps: int
    accuracy: float  # on all samples of the domain left out, mean over domains and trials
    domains: Mapping[str, float]
    average: str = ""

    @property
    def method(self) -> Method:
        """The row of a table that it belongs to."""
        return Method(self.algorithm, average=self.average)

    @property
    def draw(self) -> int:
        """The former name of `number`."""
        warnings.warn("Candidate.draw is now Candidate.number", DeprecationWarning, stacklevel=2)
        return self.number


def ranked_candidates(plan: Plan, curves: Sequence[Curve], metric: Metric = ACCURACY) -> list[Candidate]:
    """Every candidate all of whose runs are done, at its best number of steps by the metric; the best first.

    Ties go to fewer steps, then to the weights that are no average, then to the defaults, then to the algorithm named
    first.
    """
    planned = Counter((run.algorithm, run.draw) for run in plan.runs())
    by_candidate: dict[tuple[str, int, str], list[Curve]] = {}
    for curve in curves:
        by_candidate.setdefault((curve.run.algorithm, curve.run.draw, curve.average), []).append(curve)
    finished = [
        _candidate(by_candidate[algorithm, number, average], metric if metric.selects else ACCURACY)
        for average in dict.fromkeys(("", plan.options.average))
        for algorithm in plan.algorithms
        for number in range(plan.draws)
        if len(by_candidate.get((algorithm, number, average), [])) == planned[algorithm, number]
    ]
    return [candidate for _, candidate in sorted(finished, key=lambda one: -one[0])]


def _candidate(curves: Sequence[Curve], metric: Metric) -> tuple[float, Candidate]:
    """With the goodness that it was chosen by."""
    steps = sorted(set.intersection(*(set(curve.steps) for curve in curves)))
    by_domain = _means(curves, steps, ACCURACY)
    mean = np.mean(list(by_domain.values()), axis=0)
    goodness = metric.goodness(np.mean(list(_means(curves, steps, metric).values()), axis=0))
    best = int(goodness.argmax())
    run = curves[0].run
    domains = {domain: float(values[best]) for domain, values in by_domain.items()}
    result = (steps[best] + 1, float(mean[best]), domains)
    return float(goodness[best]), Candidate(run.algorithm, run.draw, run.hparams, *result, curves[0].average)


def _means(curves: Sequence[Curve], steps: Sequence[int], metric: Metric) -> dict[str, Floats]:
    """{domain left out: mean over trials at each of the steps}."""
    by_trial: dict[str, list[list[float]]] = {}
    for curve in curves:
        (domain,) = curve.run.test_domains
        values = dict(zip(curve.steps, _both_splits(curve, domain, metric), strict=True))
        by_trial.setdefault(domain, []).append([values[step] for step in steps])
    return {domain: np.mean(trials, axis=0) for domain, trials in by_trial.items()}


def _both_splits(curve: Curve, domain: str, metric: Metric) -> list[float]:
    """The metric on both splits of a domain, weighted by their sizes, at every evaluation."""
    known = curve.values(metric)
    if (domain, "in") not in known:
        raise UserError(
            f"{curve.run}: {metric.name} is not known at every evaluation{metric.needs_note}: choose another",
            argument="metric",
        )
    inside, outside = known[domain, "in"], known.get((domain, "out"))
    if outside is None:
        return list(inside)
    share = curve.run.held_out
    return list((1 - share) * inside + share * outside)
