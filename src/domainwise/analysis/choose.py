"""Which trained models to look at: run folders as given, or of a sweep one per method."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.data.find import find_dataset
from domainwise.engine.restore import finished
from domainwise.protocol.dataset_names import FOLDER, called, titles
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve, searches, select
from domainwise.sweep.collection import collect

RULE = "training-domain"
"""How the one run per method is chosen; its model is the one after the last step, the only one that is kept."""


@dataclass(frozen=True)
class Wanted:
    """What must be alike in the runs of a sweep; what is not said is the first that serves most methods."""

    dataset: str | None = None
    unseen: str | None = None
    trial: int | None = None

    def fits(self, unseen: str, trial: int) -> bool:
        return self.unseen in (None, unseen) and self.trial in (None, trial)


def chosen_folders(paths: Sequence[Path], wanted: Wanted | None = None) -> list[Path]:
    """The folders of runs that ended well: each path is one, or that of a training, or holds those of a sweep."""
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give the folder of a run (OUT/<run id>) or of a sweep")
        inside = [] if (path / "run.json").exists() else [file.parent for file in path.glob("*/run.json")]
        if len(inside) > 1 or (inside and wanted not in (None, Wanted())):
            folders += best_of_sweep(path, wanted or Wanted())
        else:
            folders.append(finished(inside[0] if inside else path).path)
    return list(dict.fromkeys(folders))


def best_of_sweep(folder: Path, wanted: Wanted) -> list[Path]:
    """One run per method, all with the same unseen domain and trial, each the best of its search by validation."""
    curves = [curve for curves in collect(folder).experiments().values() for curve in curves]
    usable = [curve for curve in curves if has_model(folder / curve.run.id)]
    if not usable:
        raise UserError(f"{folder}: no run there has ended well and kept its model")
    dataset = _only(folder, sorted({curve.run.dataset for curve in usable}), wanted.dataset)
    grouped = searches([curve for curve in usable if curve.run.dataset == dataset])
    grouped = {key: found for key, found in grouped.items() if wanted.fits(key[2], key[3])}
    known = sorted({domain for curve in usable for domain in curve.run.test_domains})
    if not known:
        raise UserError(f"{folder}: no run there leaves a domain out: name one run's folder ({folder}/<run id>)")
    if not grouped:
        asked = f"unseen {wanted.unseen or 'any'}, trial {'any' if wanted.trial is None else wanted.trial}"
        raise UserError(f"{folder}: no run with {asked}; unseen domains there: {', '.join(known)}")
    methods: dict[tuple[str, str, int], list[Run]] = {}
    for (_, source, unseen, trial), found in grouped.items():
        if best := _best(found, unseen):
            methods.setdefault((source, unseen, trial), []).append(best)
    if not methods:
        raise UserError(f"{folder}: no run there was judged on its training domains: name a run's folder instead")
    most = max(len(runs) for runs in methods.values())
    runs = min((key, runs) for key, runs in methods.items() if len(runs) == most)[1]
    order = list(ALGORITHMS)
    return [folder / run.id for run in sorted(runs, key=lambda run: (order.index(run.algorithm), run.variant))]


def has_model(folder: Path) -> bool:
    return (folder / "model.safetensors").is_file()


def _best(curves: Sequence[Curve], unseen: str) -> Run | None:
    choice = select(curves, unseen, RULE)
    return choice.run if choice else None


def _only(folder: Path, datasets: list[str], wanted: str | None) -> str:
    found = datasets if wanted is None else sorted(called(wanted, datasets, folder))
    if len(found) > 1:
        found = [dataset for dataset in found if _is_there(dataset)]
    if len(found) != 1:
        raise UserError(f"{folder} has runs of {', '.join(titles(datasets).values())}: say which with --dataset")
    return found[0]


def _is_there(dataset: str) -> bool:
    """Whether a folder of images is as it was when its runs were made; other datasets do not change."""
    folder = FOLDER.fullmatch(dataset)
    try:
        return folder is None or find_dataset(folder["path"], skip_bad=bool(folder["skipping"])).name == dataset
    except UserError:
        return False
