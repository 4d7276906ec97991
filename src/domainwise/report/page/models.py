"""What the trained models of an experiment look at, add and use, side by side for every unseen domain."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from torch import nn

from domainwise.analysis import attention
from domainwise.analysis.audit import Audit, audit
from domainwise.analysis.perturbations import measure
from domainwise.analysis.shift import Setup, default_network, measure_shift
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.data.find import find_dataset
from domainwise.engine.restore import TrainedRun
from domainwise.nets.weights import planned
from domainwise.protocol.statistics import ARROW
from domainwise.report.audited import audit_figure
from domainwise.report.figures.style import ANY_GROUND
from domainwise.report.heatmaps import heatmap_grid
from domainwise.report.page.pictures import Picture, address
from domainwise.report.page.results import View
from domainwise.report.perturbed import perturbation_figure
from domainwise.report.shifted import shift_figure

COMPARED = ("ERM", "IRM", "AT", "DAT")
"""The methods of the paper's heatmaps: of more than FEW, these are shown where two of them are there, else all."""
FEW = 6
COLUMNS = 8
"""Unseen domains that are looked at, at most."""
IMAGES = 6
SHIFT_IMAGES = 2000
"""Per side of an estimate of shift, at most."""
AUDITED = (
    "Accuracy per class, the worst of ten images or more framed; right, whose features a linear probe takes for whose."
)
DOTS = 110
"""Per inch, in pictures made of pixels."""


@dataclass(frozen=True)
class Answers:
    """What one model was found to use."""

    method: str
    sentences: Sequence[str]
    numbers: Sequence[tuple[str, Sequence[str]]]
    """(domain, a number for each heading)."""


@dataclass(frozen=True)
class Insight:
    """All of one unseen domain."""

    unseen: str
    attention: Picture
    audit: Picture
    headings: Sequence[str]
    answers: Sequence[Answers]
    perturbations: Sequence[Picture]
    left_out: Sequence[str]
    """Whom nothing is shown of, and why."""


@dataclass(frozen=True)
class Models:
    """What could be found out, and if nothing, why."""

    insights: Sequence[Insight] = ()
    reason: str = ""
    shift: Picture | None = None
    """Estimated where it takes seconds, on small images, or where it was asked for."""
    no_shift: str = ""
    """Why it could not be estimated."""


@dataclass(frozen=True)
class Asking:
    """Where data is found and models run, and whether the shift of photographs is estimated too."""

    data_root: Path | None = None
    device: str = "cpu"
    shift: bool = False
    progress: Callable[[str], None] = lambda _: None


def look(folder: Path, view: View, asking: Asking) -> Models:
    """Restores the selected models of every unseen domain and asks them; what is missing is a reason, not an error."""
    parent = folder.resolve().parent if (folder / "run.json").is_file() else folder
    found: list[Insight] = []
    try:
        for column, kept in _kept(parent, view).items():
            shown = _compared(kept)
            asking.progress(f"asking {counted(len(shown), 'model')} about {column}")
            models = attention.restore_all(list(shown.values()), asking.data_root, asking.device)
            found.append(_insight(column, models, _left_out(view, column, kept, shown), asking.data_root))
    except UserError as error:
        return Models(found, str(error))
    if not found:
        return Models(reason="no model was kept with these runs")
    try:
        shift = _shift(models[0], [insight.unseen.split(ARROW)[-1] for insight in found], asking)
    except UserError as error:
        return Models(found, no_shift=str(error))
    return Models(found, shift=shift)


def _shift(trained: TrainedRun, unseen: Sequence[str], asking: Asking) -> Picture | None:
    """The paper's Figure 1, from an estimate for these domains."""
    dataset = find_dataset(trained.run.dataset)
    if dataset.scale == "image" and not asking.shift:
        return None
    network = default_network(dataset)
    weights = planned(network, "", asking.data_root)
    setup = Setup(network, weights, asking.device, SHIFT_IMAGES, asking.data_root)
    measured = measure_shift(
        trained.environments,
        list(dict.fromkeys(unseen)),
        setup,
        progress=lambda what: asking.progress(f"shift, {what}"),
    )
    caption = f"{measured.sentence} Shaded: diversity shift; the distance of the lines at the right: correlation shift."
    return _picture("Training against unseen domains", caption, [], partial(shift_figure, measured))


def _kept(parent: Path, view: View) -> dict[str, dict[str, Path]]:
    """{column: {method: folder of its model}}, of the first trial that has most of them."""
    result = {}
    for column in view.table.columns[:COLUMNS]:
        by_trial: dict[int, dict[str, Path]] = {}
        for method, own, trial, choice in view.chosen:
            path = parent / choice.run.id
            if own == column and (path / "model.safetensors").is_file():
                by_trial.setdefault(trial, {})[method] = path
        if by_trial:
            result[column] = max(by_trial.values(), key=len)
    return result


def _compared(models: Mapping[str, Path]) -> Mapping[str, Path]:
    wanted = {method: path for method, path in models.items() if method.split(" (")[0] in COMPARED}
    return wanted if len(models) > FEW and len(wanted) > 1 else models


def _left_out(view: View, column: str, kept: Mapping[str, Path], shown: Mapping[str, Path]) -> list[str]:
    """In words."""
    others = [method for method in kept if method not in shown]
    without = [row.method for row in view.table.rows if column in row.cells and row.method not in kept]
    told = []
    if others:
        told.append(f"Of {len(kept)} methods, those of the paper's heatmaps; not shown: {', '.join(others)}.")
    if without:
        told.append(f"Not shown, for want of a model of the same trial: {', '.join(without)}.")
    return told


def _insight(column: str, models: Sequence[TrainedRun], left_out: Sequence[str], data_root: Path | None) -> Insight:
    data, unseen = models[0].environments, column.split(ARROW)[-1]
    flattens = any(isinstance(module, nn.Flatten) for module in models[0].algorithm.network.modules())
    rows = attention.sample_rows(data, unseen, 1, IMAGES)
    compared = attention.compare_attention(models, rows, None, "hires-cam" if flattens else "grad-cam")
    shares = [f"{sight.name}: {sight.inside} % of the heat on the object" for sight in compared.sights if sight.inside]
    if compared.area is not None:
        shares.append(f"an even heatmap: {100 * compared.area:.1f} %")
    audits = [audit(trained, data_root) for trained in models]
    headings = list(dict.fromkeys(name for found in audits for name in _questions(found)))
    return Insight(
        column,
        _picture("Heatmaps", "Red speaks for the answer below it.", shares, partial(heatmap_grid, compared)),
        _picture("Every class in every domain", AUDITED, [], partial(audit_figure, audits)),
        headings,
        [Answers(found.name, found.sentences, list(_numbers(found, headings))) for found in audits],
        list(_perturbations(models)),
        left_out,
    )


def _questions(found: Audit) -> dict[str, Mapping[str, float]]:
    """What was asked of every domain, and the accuracies."""
    asked = {"as it is": {score.domain: score.accuracy for score in found.scores}}
    names = {"swapped": "swapped", "black": "over black", "alone": "background alone"}
    return asked | {title: getattr(found.use, name) for name, title in names.items() if hasattr(found.use, name)}


def _numbers(found: Audit, headings: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    asked = _questions(found)
    for score in found.scores:
        values = (asked.get(heading, {}).get(score.domain) for heading in headings)
        name = score.domain if score.seen else f"{score.domain} (unseen)"
        yield name, ["" if value is None else f"{100 * value:.1f}" for value in values]


def _perturbations(models: Sequence[TrainedRun]) -> Iterator[Picture]:
    """Of every model that keeps some."""
    for trained in models:
        if "delta" in dict(trained.algorithm.named_buffers()) and len(trained.environments.shape) == 3:
            measured = measure(trained)
            title = f"{measured.method}: what it adds to each training domain"
            yield _picture(title, measured.sentence, [], partial(perturbation_figure, measured))


def _picture(title: str, caption: str, sentences: Sequence[str], draw: Callable[[], Figure]) -> Picture:
    """Without ground and in a middle grey: for light and dark pages alike."""
    out = io.BytesIO()
    with mpl.rc_context(ANY_GROUND):
        draw().savefig(out, format="png", dpi=DOTS)
    return Picture(title, caption, sentences, address(out.getvalue(), "image/png"))
