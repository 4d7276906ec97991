"""Soups and ensembles: one model made of several finished runs.

    soup       theta = mean_m theta_m         Wortsman et al. 2022, https://arxiv.org/abs/2203.05482, and for domain
                                              generalisation DiWA, Rame et al. 2022, https://arxiv.org/abs/2205.09739
    ensemble   p(y|x) = mean_m p_m(y|x)       EoA, Arpit et al. 2022, https://arxiv.org/abs/2110.10832

Weights can be averaged where runs share their start; probabilities always. A uniform soup takes all runs. A greedy one
takes them in the order of their validation accuracy and keeps each that does not lower that of the soup; validation is
that of the training domains, which does not look at the unseen one.

A combination is judged on the splits of its runs and recorded beside them (sweeps read it as one more run, which is
not trained), so that it is a row of every table. Its weights are saved only as a model of their own.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from domainwise.algorithms.base import Algorithm
from domainwise.core import files
from domainwise.core.errors import UserError, unknown
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.data.images import progress
from domainwise.engine.assemble import EnsembleAlgorithm
from domainwise.engine.evaluation import evaluate, splits_to_evaluate
from domainwise.engine.execution.isolation import RunContext
from domainwise.engine.restore import TrainedRun, restore
from domainwise.models.averages import WeightSum, load_average
from domainwise.models.combinable import CombinableRuns, RunsWanted, chosen_runs, runs_of_sweep
from domainwise.models.combination import Combined, Member
from domainwise.models.model import Model
from domainwise.protocol.runs import Combination, Run
from domainwise.protocol.saved_weights import saved_weights
from domainwise.protocol.selection import Method, training_domain_score

log = logging.getLogger(__name__)

RULES = ("uniform", "greedy")


def soup(
    runs: Path | str | Sequence[Path | str],
    *,
    rule: str = "uniform",
    algorithm: str | None = None,
    test_domain: str | None = None,
    trial: int | None = None,
    out: Path | str | None = None,
    device: str = "auto",
    data_root: Path | None = None,
    environments: Environments | None = None,
) -> Model:
    """One model whose weights are the mean of those of several finished runs that share their start.

    `runs` is the folder of a sweep, or the folders of runs. Of a sweep with several algorithms, test domains or trials
    name one of each. The rule is "uniform" (all runs) or "greedy" (those that do not lower the accuracy on held-out
    samples of the training domains). With `out` the model is saved there. `environments` are the runs' data, where it
    cannot be loaded by their name.
    """
    if rule not in RULES:
        raise unknown("rule of a soup", rule, RULES)
    wanted = RunsWanted(algorithm, test_domain, trial)
    combination: Combination = "greedy soup" if rule == "greedy" else "uniform soup"
    return _one(runs, combination, wanted, out, device, data_root, environments)


def ensemble(
    runs: Path | str | Sequence[Path | str],
    *,
    algorithm: str | None = None,
    test_domain: str | None = None,
    trial: int | None = None,
    out: Path | str | None = None,
    device: str = "auto",
    data_root: Path | None = None,
    environments: Environments | None = None,
) -> Model:
    """One model whose probabilities are the mean of those of several finished runs; the arguments are those of `soup`.

    The runs need not share their start. The model holds the weights of all, and predicting takes as many passes.
    """
    return _one(runs, "ensemble", RunsWanted(algorithm, test_domain, trial), out, device, data_root, environments)


def _one(
    runs: Path | str | Sequence[Path | str],
    combination: Combination,
    wanted: RunsWanted,
    out: Path | str | None,
    device: str,
    data_root: Path | None,
    environments: Environments | None,
) -> Model:
    paths = [Path(runs)] if isinstance(runs, (str, Path)) else [Path(path) for path in runs]
    folder = None if out is None else Path(out)
    (made,) = combine(paths, combination, wanted, device, data_root, environments, single=True, out=folder)
    model = made.model(device)
    if folder is not None:
        model.save(folder)
    return model


def combine(
    paths: Sequence[Path],
    combination: Combination,
    wanted: RunsWanted,
    device: str = "auto",
    data_root: Path | None = None,
    environments: Environments | None = None,
    *,
    single: bool = False,
    out: Path | None = None,
) -> Iterator[Combined]:
    """Every soup or ensemble of the runs in a sweep's folder, or the one of the runs whose folders these are.

    With `single`, runs that make several are a UserError; without, those of a sweep that are recorded there, without
    the weights of their runs, are not made. What would stop any of them is an error before the first, and so is a
    folder `out` that cannot be written to.
    """
    groups = find_combinable(paths, combination, wanted, recorded="" if single else combination)
    if single and len(groups) > 1:
        raise _several(paths[0], groups)
    if out is not None:
        files.writable_folder(out)
    loaded: dict[tuple[str, int], Environments] = {}
    for group in groups:
        key = group.run.dataset, group.run.image_size
        if key not in loaded:
            loaded[key] = environments or find_dataset(key[0]).load(data_root, key[1])
    with progress.show(f"{combination}: runs", sum(len(group.folders) for group in groups)) as advance:
        for group in groups:
            yield _combine(group, combination, device, loaded[group.run.dataset, group.run.image_size])
            advance(len(group.folders))


def find_combinable(
    paths: Sequence[Path], combination: Combination, wanted: RunsWanted, recorded: Combination = ""
) -> list[CombinableRuns]:
    """The groups of runs to combine. Of a sweep, those that share no start are left out of soups, if others do."""
    if not paths:
        raise UserError("no runs to combine: give the folder of a sweep, or the folders of runs")
    if len(paths) == 1 and not (paths[0] / "run.json").exists():
        groups = runs_of_sweep(paths[0], wanted, recorded)
    elif wanted == RunsWanted():
        groups = [chosen_runs(list(dict.fromkeys(path.resolve() for path in paths)))]
    else:
        raise UserError("algorithm, test domain and trial are for the folder of a sweep; these are folders of runs")
    reasons = [group.start_difference() if combination != "ensemble" else "" for group in groups]
    if reasons and all(reasons):
        advice = "sweep with the space 'soup' makes runs that do"
        raise UserError(f"these runs do not share their start, and cannot be averaged: {reasons[0]}; {advice}")
    chosen = [group for group, reason in zip(groups, reasons, strict=True) if not reason]
    for method in dict.fromkeys(str(Method.of(group.run)) for group in groups if group not in chosen):
        log.warning("%s is left out: its runs do not share their start", method)
    if combination == "greedy soup" and (unvalidated := [group for group in chosen if not group.run.held_out]):
        raise UserError(f"{unvalidated[0].name}: no samples were held out to select runs: make a uniform soup")
    return chosen


def _several(folder: Path, groups: Sequence[CombinableRuns]) -> UserError:
    """Says which option narrows the runs down to those of one model."""
    facts: tuple[tuple[str, str, Callable[[Run], object]], ...] = (
        ("algorithm", "algorithms", lambda run: Method.of(run)),
        ("test_domain", "test domains", lambda run: "+".join(run.test_domains) or "none"),
        ("trial", "trials", lambda run: run.trial),
    )
    for argument, words, fact in facts:
        if len(known := dict.fromkeys(str(fact(group.run)) for group in groups)) > 1:
            return UserError(f"{folder} has runs of several {words} ({', '.join(known)}): name one", argument=argument)
    return UserError(f"{folder} has runs of several experiments: give the folders of the runs")


def _combine(group: CombinableRuns, combination: Combination, device: str, data: Environments) -> Combined:
    changes: dict[str, Any] = {"combination": combination, "members": group.offered, "draw": 0, "track": ()}
    run = replace(group.run, **changes)
    members = [Member.of(folder, curve) for folder, curve in zip(group.folders, group.curves, strict=True)]
    trained = restore(group.folders[0].path, environments=data, device=device)
    with RunContext(trained.environments.device, run.precision, run.threads):
        if combination == "ensemble":
            rest = [restore(one.path, environments=data, device=device) for one in group.folders[1:]]
            algorithm: Algorithm = EnsembleAlgorithm([trained.algorithm, *(one.algorithm for one in rest)])
        else:
            members = _average(trained, group, members, greedy=combination == "greedy soup")
            algorithm = trained.algorithm
        splits = splits_to_evaluate(run, trained.environments)
        scores = evaluate(algorithm, trained.environments, splits, run.train_domains)
        algorithm.eval()
    seconds = sum(curve.seconds or 0.0 for curve in group.curves)
    return Combined(run, tuple(members), algorithm, trained.environments, scores, seconds)


def _average(trained: TrainedRun, group: CombinableRuns, members: list[Member], *, greedy: bool) -> list[Member]:
    """Gives the algorithm the mean weights of all runs, or of those that a greedy choice keeps; who is used."""
    order = (
        sorted(range(len(members)), key=lambda i: -(members[i].validation or 0.0)) if greedy else range(len(members))
    )
    total, best, used = WeightSum(), float("-inf"), set()
    for i in order:
        tensors = saved_weights(group.folders[i]).tensors
        _check_shapes(group.run, trained.algorithm, members[i].run, tensors)
        tried = total.plus(tensors)
        if greedy:
            _load(trained, tried)
            score = _validation(trained)
            if score < best:
                continue
            best = score
        total = tried
        used.add(i)
    _load(trained, total)
    return [replace(member, used=i in used) for i, member in enumerate(members)]


def _check_shapes(first: Run, algorithm: Algorithm, run: Run, tensors: Mapping[str, Tensor]) -> None:
    """Raises UserError if hyper-parameters give the weights of two runs other shapes."""
    expected = {name: list(value.shape) for name, value in algorithm.state_dict().items()}
    actual = {name: list(value.shape) for name, value in tensors.items()}
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            shapes = f"{expected.get(name, 'none')} and {actual.get(name, 'none')}"
            raise UserError(f"runs {first.id} and {run.id} cannot be averaged: {name} has other shapes ({shapes})")


def _load(trained: TrainedRun, total: WeightSum) -> None:
    """One run's weights stay as they are, statistics included."""
    if total.count > 1:
        load_average(trained, total.mean())
    else:
        trained.algorithm.load_state_dict(total.mean())


def _validation(trained: TrainedRun) -> float:
    run, data = trained.run, trained.environments
    splits = {part: rows for part, rows in splits_to_evaluate(run, data).items() if part[0] in run.train_domains}
    scores = evaluate(trained.algorithm, data, splits, run.train_domains)
    return training_domain_score(run, {part: one.accuracy for part, one in scores.items()}) or 0.0
