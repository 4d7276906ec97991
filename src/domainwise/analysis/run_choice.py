"""Which trained models to analyse: run folders as given, or of a sweep one per method."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.data.find import find_dataset
from domainwise.engine.restore import finished
from domainwise.protocol.dataset_names import FOLDER, matching, titles
from domainwise.protocol.reading import Reading
from domainwise.protocol.runs import Run
from domainwise.protocol.saved_weights import RULE
from domainwise.protocol.selection import Column, Curve, Search, searches, select
from domainwise.sweeps.collection import collect

log = logging.getLogger("domainwise")


@dataclass(frozen=True)
class RunFilter:
    """The runs of a sweep to analyse; where a field is None, the first value with runs of most methods is taken."""

    dataset: str | None = None
    unseen: str | None = None
    trial: int | None = None

    def fits(self, search: Search) -> bool:
        return self.unseen in (None, search.column.unseen) and self.trial in (None, search.trial)


def run_folders(paths: Sequence[Path], wanted: RunFilter | None = None) -> list[Path]:
    """Folders of runs that are done: each path is one, or that of a training, or holds those of a sweep."""
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give the folder of a run (OUT/<run id>) or of a sweep")
        inside = [] if (path / "run.json").exists() else [file.parent for file in path.glob("*/run.json")]
        if len(inside) > 1 or (inside and wanted not in (None, RunFilter())):
            folders += best_run_folders(path, wanted or RunFilter())
        else:
            folders.append(finished(inside[0] if inside else path).path)
    return list(dict.fromkeys(folders))


def best_run_folders(folder: Path, wanted: RunFilter) -> list[Path]:
    """One run per method, all with the same unseen domain and trial, each selected by training-domain validation."""
    collection = collect(folder)
    for note in collection.notes:
        log.warning("%s", note)
    curves = of_models(curve for curves in collection.experiments().values() for curve in curves)
    usable = [curve for curve in curves if has_model(folder / curve.run.id)]
    if not usable:
        raise UserError(f"{folder}: no run there is done and has its model")
    done = {key for key, status in collection.statuses.items() if status.status == "done"}
    trained = [curve for curve in curves if not curve.run.combination]  # soups and ensembles keep only records
    if lost := sorted(curve.run.id for curve in trained if curve.run.id in done and curve not in usable):
        log.warning("%s: %s without a model: %s", folder, counted(len(lost), "run"), ", ".join(lost[:3]))
    dataset = _only(folder, sorted({curve.run.dataset for curve in usable}), wanted.dataset)
    grouped = searches([curve for curve in usable if curve.run.dataset == dataset])
    grouped = {search: draws for search, draws in grouped.items() if wanted.fits(search)}
    known = sorted({domain for curve in usable for domain in curve.run.test_domains})
    if not known:
        raise UserError(f"{folder}: no run there leaves a domain out: name one run's folder ({folder}/<run id>)")
    if not grouped:
        wish = f"unseen {wanted.unseen or 'any'}, trial {'any' if wanted.trial is None else wanted.trial}"
        raise UserError(f"{folder}: no run with {wish}; unseen domains there: {', '.join(known)}")
    methods: dict[tuple[Column, int], list[Run]] = {}
    for search, draws in grouped.items():
        if choice := select(draws, search.column.unseen, RULE):
            methods.setdefault((search.column, search.trial), []).append(choice.run)
    if not methods:
        raise UserError(f"{folder}: no run there was evaluated on its training domains: name a run's folder instead")
    most = max(len(runs) for runs in methods.values())
    complete = {key: runs for key, runs in methods.items() if len(runs) == most}
    runs = complete[min(complete, key=lambda key: (key[0].source, key[0].unseen, key[1]))]
    order = list(ALGORITHMS)
    return [
        folder / run.id for run in sorted(runs, key=lambda run: (order.index(run.algorithm), run.variant, run.average))
    ]


def of_models(curves: Iterable[Curve]) -> list[Curve]:
    """The curves of the weights that a run's model has by default: averaged ones if it has an average."""
    return [curve for curve in curves if curve.average == curve.run.average]


def has_model(folder: Path) -> bool:
    return (folder / "model.safetensors").is_file()


def _only(folder: Path, datasets: list[str], wanted: str | None) -> str:
    candidates = datasets if wanted is None else sorted(matching(wanted, datasets, folder))
    if len(candidates) > 1:
        candidates = [dataset for dataset in candidates if _is_unchanged(dataset)]
    if len(candidates) != 1:
        names = ", ".join(titles(datasets).values())
        raise UserError(f"{folder} has runs of {names}: name one of them", argument="dataset")
    return candidates[0]


def _is_unchanged(dataset: str) -> bool:
    """Whether a folder of images is as it was when its runs were made; other datasets do not change."""
    folder = FOLDER.fullmatch(dataset)
    try:
        if folder is None:
            return True
        reading = Reading.parse(folder["reading"] or "")
        return find_dataset(folder["path"], skip_bad=bool(folder["skipping"]), reading=reading).name == dataset
    except UserError:
        return False
