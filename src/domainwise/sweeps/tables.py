"""Accuracy tables of collected runs: one per experiment and selection rule."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError, unknown
from domainwise.core.phrasing import counted
from domainwise.core.table import Table, Tabular
from domainwise.data.catalogue import usual_selection
from domainwise.protocol.dataset_names import titles
from domainwise.protocol.metrics import ACCURACY, Metric, find_metric
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import RULES, Column, Curve, Method, columns_of, searches
from domainwise.protocol.statistics import Scores, selected
from domainwise.sweeps.accuracy_table import AccuracyTable
from domainwise.sweeps.collection import Collection, Experiment, experiment, is_companion
from domainwise.sweeps.domainbed import NETWORK as DOMAINBED
from domainwise.sweeps.domainbed import collect_results


class AccuracyTables(tuple[AccuracyTable, ...], Tabular):
    """Several tables, shown below each other."""

    __slots__ = ()

    def to_records(self) -> list[dict[str, Any]]:
        return [record for one in self for record in one.to_records()]

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self))

    def _repr_html_(self) -> str:
        return "".join(one._repr_html_() for one in self)

    def __rich_console__(self, console: object, options: object) -> Iterator[Table]:
        return (one.as_table() for one in self)


def table(
    folder: Path | str,
    selection: str | None = None,
    *,
    baseline: str = "ERM",
    partial: bool = False,
    metric: str = "accuracy",
) -> AccuracyTables:
    """The accuracy tables of a folder: a sweep's, a published one, or DomainBed's output.

    `selection` is a rule of model selection, "all" for a table under each rule, or None for each dataset's usual rule.
    Runs that failed or are not finished are left out unless `partial`; captions say which. With another `metric` the
    tables show that, and the rule selects by it (see `protocol.metrics`).
    """
    return accuracy_tables(Path(folder), collect_results(Path(folder), partial), selection, baseline, metric)


def accuracy_tables(
    folder: Path, collection: Collection, selection: str | None, baseline: str, metric: str = "accuracy"
) -> AccuracyTables:
    """Those of a folder that has been read; without any, the error says why."""
    if selection not in (None, "all", *RULES):
        raise unknown("selection rule", selection, [*RULES, "all"])
    shown = find_metric(metric)
    check_baseline(baseline, collection)
    if not collection.runs:
        raise UserError(f"{folder}: nothing to show; give the folder of a sweep or of DomainBed's output")
    rules = [*RULES] if selection == "all" else [selection]
    result = [one for rule in rules for one in tables(collection, rule, baseline, shown)]
    if not result:
        check_recorded(folder, collection, shown)
        rule = f"{selection} validation" if selection else "its dataset's selection rule"
        raise UserError(
            f"{folder}: nothing to show; no run there has the evaluations that {rule} needs; try the selection 'all'",
            argument="selection",
        )
    return AccuracyTables(result)


def check_recorded(folder: Path, collection: Collection, metric: Metric) -> None:
    """Raises UserError if there are curves, and none of them has this metric."""
    if collection.curves and not any(curve.values(metric) for curve in collection.curves):
        why = metric.needs_note or ": runs of earlier versions and of DomainBed have not"
        raise UserError(
            f"{folder}: no run there has recorded {metric.name}{why}; train them again, or show accuracy",
            argument="metric",
        )


def check_baseline(baseline: str, collection: Collection) -> None:
    """A baseline is a registered algorithm or a method of the collection."""
    if baseline not in ALGORITHMS:
        known = {str(Method.of(run, average)) for run in collection.runs for average in {"", run.average}}
        if baseline not in known:
            raise unknown("algorithm", baseline, {*ALGORITHMS, *known})


def tables(
    collection: Collection, rule: str | None = None, baseline: str = "ERM", metric: Metric = ACCURACY
) -> list[AccuracyTable]:
    """A table per group of experiments with the evaluations that the rule (by default the dataset's usual) needs."""
    result = []
    for group in groups(collection):
        chosen = rule or usual_selection(group.experiment.dataset)
        one = table_of(group, selected(group.curves, chosen, metric), chosen, baseline, metric)
        complete = collection.completeness(group.incomplete)
        result.append(
            replace(one, partial=complete.is_partial, completeness=(*complete.sentences, *_without(group, metric)))
        )
    names = titles(one.dataset for one in result)
    return [replace(one, called=names[one.dataset], searched=collection.searched) for one in result if not one.is_empty]


@dataclass(frozen=True)
class Group:
    """The contents of one table: the first of its experiments, the curves of all, and the runs that are not done.

    The latter may have a curve, or be planned and missing.
    """

    experiment: Experiment
    curves: tuple[Curve, ...]
    incomplete: tuple[Run, ...] = ()

    @property
    def columns(self) -> set[Column]:
        """Those of the curves, and those that the runs without one belong to: an average is over all of them."""
        runs = [curve.run for curve in self.curves]
        runs += [run for run in self.incomplete if not is_companion(run)]
        return {column for run in runs for column in columns_of(run)}


def groups(collection: Collection) -> list[Group]:
    """Experiments that differ in their steps only are put together, as in the paper, where no method occurs twice."""
    alike: dict[Experiment, list[tuple[Experiment, list[Curve]]]] = {}
    for one, curves in collection.experiments().items():
        alike.setdefault(replace(one, steps=0), []).append((one, curves))
    incomplete: dict[Experiment, list[Run]] = {}
    for run in collection.incomplete:
        incomplete.setdefault(replace(experiment(run), steps=0), []).append(run)
    result: list[Group] = []
    for shared, members in alike.items():
        methods = [method for _, curves in members for method in {curve.method for curve in curves}]
        together = [members] if len(methods) == len(set(methods)) else [[one] for one in members]
        everywhere = [
            run
            for run in incomplete.get(shared, [])
            if Method.of(run) not in methods and run.steps not in {one.steps for one, _ in members}
        ]
        for parts in together:
            steps = {one.steps for one, _ in parts}
            own = [run for run in incomplete.get(shared, []) if run.steps in steps]
            curves_of_all = tuple(curve for _, curves in parts for curve in curves)
            result.append(Group(parts[0][0], curves_of_all, (*own, *everywhere)))
    return result


def _without(group: Group, metric: Metric) -> list[str]:
    """Names the runs that have not recorded a metric, if any."""
    unmeasured = [curve for curve in group.curves if not curve.values(metric)]
    if not unmeasured:
        return []
    methods = ", ".join(dict.fromkeys(str(curve.method) for curve in unmeasured))
    runs = counted(len({curve.run.id for curve in unmeasured}), "run")
    return [f"left out, recorded without {metric.name}: {runs} of {methods}"]


def table_of(
    group: Group, scores: Scores, rule: str, baseline: str = "ERM", metric: Metric = ACCURACY
) -> AccuracyTable:
    """The table of selected scores, each row with how much was searched for it."""
    shared = group.experiment
    was_run: dict[Method, set[Column]] = {}
    for search in searches([curve for curve in group.curves if curve.values(metric)]):
        was_run.setdefault(search.method, set()).add(search.column)
    bare = AccuracyTable.of(
        shared.dataset, rule, scores, list(ALGORITHMS), baseline, metric, was_run, columns=group.columns
    )
    by_method: dict[Method, list[Curve]] = {}
    for curve in group.curves:
        by_method.setdefault(curve.method, []).append(curve)
    rows = []
    for row in bare.rows:
        curves = by_method[row.method]
        members = max(len(curve.run.members) for curve in curves)  # of soups and ensembles
        draws = max(members, *map(len, searches(curves).values()))
        trials = len({curve.run.trial for curve in curves})
        shown = row.as_domainbed() if shared.network == DOMAINBED else row
        rows.append(replace(shown, draws=draws, trials=trials, steps=curves[0].run.steps))
    return replace(
        bare,
        rows=tuple(rows),
        setting=shared.setting,
        network=shared.network,
        weights=next((curve.run.weights for curve in group.curves), ""),
        precision=shared.precision,
        augmentation=shared.augmentation,
        image_size=shared.image_size,
        recipe=shared.recipe,
    )
