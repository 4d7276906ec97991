"""Heatmaps, audits and perturbations of an experiment's trained models, side by side for every unseen domain."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure

from domainwise.analysis import attention
from domainwise.analysis.audit import Audit, audit
from domainwise.analysis.perturbations import measure
from domainwise.analysis.run_choice import has_model
from domainwise.analysis.shift import ShiftSettings, default_network, measure_shift
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.data.find import find_dataset
from domainwise.engine.restore import TrainedRun
from domainwise.nets.weights import planned
from domainwise.protocol.selection import Column, Method
from domainwise.reports.page.pictures import Picture, address
from domainwise.reports.page.results import View
from domainwise.reports.pictures import audit_figure, heatmap_grid, perturbation_figure, shift_figure
from domainwise.reports.probabilities import probability_figure
from domainwise.reports.style import content, light_and_dark
from domainwise.sweeps.collection import runs_parent

COMPARED = ("ERM", "IRM", "AT", "DAT")
"""The methods of the paper's heatmaps: of more than FEW, these are shown where two of them are there, else all."""
FEW = 6
COLUMNS = 8
"""Unseen domains that are shown, at most."""
IMAGES = 6
SHIFT_IMAGES = 2000
"""Per side of an estimate of shift, at most."""
AUDITED = (
    "Accuracy per class, the worst of ten images or more framed; right, the confusion matrix of a linear domain probe."
)
PROBABILITIES = (
    "Left: the share of right predictions by their confidence; on the diagonal a model is as often right as it says. "
    "Right: the error rate if only the most confident predictions count. Probabilities are those of the networks, "
    "before calibration."
)
CLASSES = 20
"""Up to which a confusion matrix is a table."""
COMMONEST = 5
"""Confusions that are named."""
SMALL = 64
"""Pixels, up to which images count as small."""
DOTS = 110
"""Per inch, in pictures made of pixels."""


@dataclass(frozen=True)
class ConfusionTable:
    """How often images of each class of the unseen domain were taken for which, in per cent of the class."""

    classes: Sequence[str]
    counts: Sequence[int]
    """Images of each class."""
    shares: Sequence[Sequence[float]]
    """[true][predicted]; empty where there are too many classes for a table."""
    commonest: Sequence[str]
    """The most frequent confusions, in words."""

    @classmethod
    def of(cls, audited: Audit, unseen: str) -> "ConfusionTable | None":
        """None where the unseen domain was not evaluated."""
        score = next((score for score in audited.scores if score.domain == unseen), None)
        if score is None:
            return None
        names, confusion = audited.classes, score.confusion
        shares = 100 * confusion / confusion.sum(1, keepdim=True).clamp_min(1)
        wrong = confusion.clone().fill_diagonal_(0).flatten()
        most = [int(i) for i in wrong.argsort(descending=True, stable=True)[:COMMONEST] if wrong[i]]
        pairs = [(i // len(names), i % len(names), int(wrong[i])) for i in most]
        words = [f"{names[a]} taken for {names[b]}: {n} of {int(confusion[a].sum())}" for a, b, n in pairs]
        table = shares.tolist() if len(names) <= CLASSES else []
        return cls(names, confusion.sum(1).long().tolist(), table, words)


@dataclass(frozen=True)
class ModelFindings:
    """The audit of one model, in sentences and numbers."""

    method: Method
    sentences: Sequence[str]
    numbers: Sequence[tuple[str, Sequence[str]]]
    """(domain, a number for each heading)."""
    confusion: ConfusionTable | None = None


@dataclass(frozen=True)
class Insight:
    """All pictures and findings of one unseen domain."""

    column: Column
    attention: Picture
    audit: Picture
    probabilities: Picture
    headings: Sequence[str]
    findings: Sequence[ModelFindings]
    perturbations: Sequence[Picture]
    left_out: Sequence[str]
    """Methods that are not shown, and why."""
    weights: Sequence[str]
    """Of which step each model's weights are."""


@dataclass(frozen=True)
class ModelInsights:
    """The insights into an experiment's models; where there is none, the reason."""

    insights: Sequence[Insight] = ()
    reason: str = ""
    shift: Picture | None = None
    """Estimated for small images, where it takes seconds, or on request."""
    no_shift: str = ""
    """The reason why it could not be estimated."""


ModelsProgress = Callable[[str, int, int], None]
"""Of what is being done, how many parts are done, and of how many."""


@dataclass(frozen=True)
class ModelOptions:
    """Where data lies and models run, and whether the shift of photographs is estimated too."""

    data_root: Path | None = None
    device: str = "cpu"
    shift: bool = False
    progress: ModelsProgress = lambda _what, _done, _total: None


def analyse_models(folder: Path, view: View, options: ModelOptions) -> ModelInsights:
    """Restores and analyses the selected models of every unseen domain; missing ones are a reason, not an error."""
    saved_models = _saved_models(runs_parent(folder), view)
    parts = 1 + sum(len(_compared(saved)) for saved in saved_models.values())  # the last is the shift
    done = 0
    insights: list[Insight] = []
    reason = no_shift = ""
    shift = None
    try:
        for column, saved in saved_models.items():
            shown = _compared(saved)
            kept = "last" if view.table.selection == "oracle" else "best"  # the oracle chooses the last step
            saves = ["averaged" if method.average else kept for method in shown]
            models = attention.restore_all(list(shown.values()), options.data_root, options.device, saves)
            left_out = _left_out(view, column, saved, shown)
            step = partial(_report, options.progress, f"models, {column} unseen", done, parts)
            with _threads_for(models[0]):
                insights.append(_insight(column, models, left_out, options.data_root, step))
            done += len(shown)
    except UserError as error:
        reason = str(error)
    if insights and not reason:
        options.progress("shift", parts - 1, parts)
        try:
            with _threads_for(models[0]):
                shift = _shift(models[0], [column.unseen for column in saved_models], options)
        except UserError as error:
            no_shift = str(error)
    if not insights and not reason:
        reason = "no model was kept with these runs"
    return ModelInsights(insights, reason, shift, no_shift)


def _report(progress: ModelsProgress, what: str, before: int, total: int, done: int) -> None:
    progress(what, before + done, total)


@contextmanager
def _threads_for(trained: TrainedRun) -> Iterator[None]:
    """Context manager: one thread for small images, on which several wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if trained.environments.shape[-1] <= SMALL else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _shift(trained: TrainedRun, unseen: Sequence[str], options: ModelOptions) -> Picture | None:
    """The paper's Figure 1, from an estimate for these domains."""
    dataset = find_dataset(trained.run.dataset)
    if dataset.scale == "image" and not options.shift:
        return None
    network = default_network(dataset)
    weights = planned(network, "", options.data_root)
    settings = ShiftSettings(network, weights, options.device, SHIFT_IMAGES, options.data_root)
    measured = measure_shift(
        trained.environments,
        list(dict.fromkeys(unseen)),
        settings,
    )
    caption = f"{measured.sentence} Shaded: diversity shift; the distance of the lines at the right: correlation shift."
    return _picture("Training against unseen domains", caption, [], shift_figure(measured))


def _saved_models(parent: Path, view: View) -> dict[Column, dict[Method, Path]]:
    """{column: {method: folder of its model}}, of the first trial that has most of them."""
    result = {}
    for column in view.table.columns[:COLUMNS]:
        by_trial: dict[int, dict[Method, Path]] = {}
        for method, chosen_column, trial, choice in view.chosen:
            path = parent / choice.run.id
            if chosen_column == column and has_model(path):
                by_trial.setdefault(trial, {})[method] = path
        if by_trial:
            result[column] = max(by_trial.values(), key=len)
    return result


def _compared(models: Mapping[Method, Path]) -> Mapping[Method, Path]:
    wanted = {method: path for method, path in models.items() if method.algorithm in COMPARED}
    return wanted if len(models) > FEW and len(wanted) > 1 else models


def _left_out(view: View, column: Column, saved: Mapping[Method, Path], shown: Mapping[Method, Path]) -> list[str]:
    """In words."""
    others = [str(method) for method in saved if method not in shown]
    without = [str(row.method) for row in view.table.rows if column in row.cells and row.method not in saved]
    sentences = []
    if others:
        sentences.append(f"Of {len(saved)} methods, those of the paper's heatmaps; not shown: {', '.join(others)}.")
    if without:
        sentences.append(f"Not shown, for want of a model of the same trial: {', '.join(without)}.")
    return sentences


def _insight(
    column: Column,
    models: Sequence[TrainedRun],
    left_out: Sequence[str],
    data_root: Path | None,
    done: Callable[[int], None],
) -> Insight:
    """Analyses the models of one unseen domain, and draws what was found."""
    data = models[0].environments
    done(0)
    rows = attention.sample_rows(data, column.unseen, 1, IMAGES)
    compared = attention.compare_attention(models, rows)
    shares = [f"{one.method}: {one.inside} % of the heat on the object" for one in compared.models if one.inside]
    shown = f"{counted(len(rows), 'image')} of {column.unseen}, which no model was trained on."
    if compared.area is not None:
        shares.append(f"an even heatmap: {100 * compared.area:.1f} %")
    heatmaps = _picture("Heatmaps", shown, shares, heatmap_grid(compared))
    audits = []
    for number, trained in enumerate(models, 1):
        audits.append(audit(trained, data_root))
        done(number)
    classes = _picture("Every class in every domain", AUDITED, [], audit_figure(audits))
    reliability = probability_figure(audits, column.unseen)
    sure = _picture("Reliability, and risk by coverage", PROBABILITIES, [], reliability)
    perturbations = list(_perturbations(models))
    headings = list(dict.fromkeys(heading for one in audits for heading in _accuracies(one)))
    findings = [
        ModelFindings(one.method, one.sentences, list(_numbers(one, headings)), ConfusionTable.of(one, column.unseen))
        for one in audits
    ]
    weights = [f"{trained.method}: {trained.weights}" for trained in models]
    return Insight(column, heatmaps, classes, sure, headings, findings, perturbations, left_out, weights)


def _accuracies(audit: Audit) -> dict[str, Mapping[str, float]]:
    """{heading: accuracy per domain}: on images as they are, and changed as the dataset allows."""
    unchanged = {"as it is": {score.domain: score.accuracy for score in audit.scores}}
    names = {"swapped": "swapped", "black": "over black", "alone": "background alone"}
    return unchanged | {title: getattr(audit.use, name) for name, title in names.items() if hasattr(audit.use, name)}


def _numbers(audit: Audit, headings: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    accuracies = _accuracies(audit)
    for score in audit.scores:
        values = (accuracies.get(heading, {}).get(score.domain) for heading in headings)
        yield score.label, ["" if value is None else f"{100 * value:.1f}" for value in values]


def _perturbations(models: Sequence[TrainedRun]) -> Iterator[Picture]:
    """Of every model that has learned some; averaged weights come with those of the last step."""
    for trained in (trained for trained in models if not trained.average):
        if "delta" in dict(trained.algorithm.named_buffers()) and len(trained.environments.shape) == 3:
            measured = measure(trained)
            title = f"{measured.method}: the perturbation of each training domain"
            yield _picture(title, measured.sentence, [], perturbation_figure(measured))


def _picture(title: str, caption: str, sentences: Sequence[str], figure: Figure) -> Picture:
    """For light and for dark pages."""
    light, dark = light_and_dark(figure, partial(content, form="png", dpi=DOTS))
    return Picture(title, caption, sentences, address(light, "image/png"), address(dark, "image/png"))
