"""Audits: accuracy per domain and class, a domain probe on the features, and the use of a dataset's known shortcut."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from domainwise.analysis.predictions import held_out_images, logits_and_features
from domainwise.analysis.probe import Probe, probe_domains
from domainwise.analysis.run_choice import RunFilter, of_models
from domainwise.analysis.shortcuts import Use, percent, shortcut
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.data.environments import Environments
from domainwise.data.images import progress
from domainwise.engine.restore import TrainedRun, restore
from domainwise.protocol.calibration import Outcomes
from domainwise.protocol.dataset_names import is_named
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import RULES, Method, Selection, searches, select
from domainwise.sweeps.collection import Collection, collect

CONSTANT = 0.95
"""Above this share of one prediction, a model counts as constant."""
FEWEST = 10
"""With fewer images of a class in a domain its accuracy means little: the worst of these is named separately."""


@dataclass(frozen=True)
class DomainAudit:
    """Accuracy on images of one domain that were not trained on, in all and per class (NaN without images)."""

    domain: str
    seen: bool
    images: int
    accuracy: float
    per_class: Tensor
    counts: Tensor
    confusion: Tensor
    """Images by [true class, predicted class]."""
    outcomes: Outcomes
    """Confidences as the network gives them, and whether it was right."""

    @property
    def label(self) -> str:
        return self.domain if self.seen else f"{self.domain} (unseen)"


@dataclass(frozen=True)
class WorstPair:
    domain: str
    label: str
    accuracy: float
    images: int

    def __str__(self) -> str:
        share = percent(self.accuracy) if self.accuracy < 0.99 else f"{100 * self.accuracy:.1f} %"  # not all: below 100
        return f"class {self.label} in {self.domain}: {share} of {counted(self.images, 'image')} right"


@dataclass(frozen=True)
class MostFrequentPrediction:
    """The most frequent prediction, and its share."""

    label: str
    share: float


@dataclass(frozen=True)
class Audit:
    """The audit of one model."""

    run: Run
    classes: tuple[str, ...]
    scores: tuple[DomainAudit, ...]
    commonest: MostFrequentPrediction
    worst: WorstPair | None
    """Of classes with enough images, where not all are right."""
    worst_of_few: WorstPair | None
    """Of classes with fewer images, if it is worse still."""
    probe: Probe | None
    use: Use | None
    average: str = ""
    """Of averaged weights, their average."""

    @property
    def method(self) -> Method:
        return Method.of(self.run, self.average)

    @property
    def sentences(self) -> list[str]:
        """The findings, the dataset's known shortcut first."""
        if self.commonest.share > CONSTANT:
            return [
                f"Answers {self.commonest.label} in {percent(self.commonest.share)} of the cases, whatever it sees."
            ]
        sentences = [self.use.sentence] if self.use else []
        average = sum(score.accuracy for score in self.scores) / len(self.scores)
        if self.worst:
            where = f" of classes with at least {FEWEST} images" if self.worst_of_few else ""
            sentences.append(f"Worst{where} at {self.worst}, {percent(average)} on average over the domains.")
        if self.worst_of_few:
            sentences.append(f"Of classes with fewer than {FEWEST} images worst at {self.worst_of_few}.")
        if average == 1:
            sentences.append("Every answer is right.")
        return sentences + ([self.probe.sentence] if self.probe else [])


def audit(trained: TrainedRun, data_root: Path | None = None) -> Audit:
    """Audits a trained model on held-out images of every domain."""
    data = trained.environments
    held_out = held_out_images(trained)
    scores, right, features, labels, predictions = [], [], [], [], []
    for held in held_out:
        truth = data.labels[held.rows.to(data.labels.device)].cpu()
        images = data.images[held.rows.to(data.images.device)]
        logits, domain_features = logits_and_features(trained, images, held.domain)
        predicted = logits.argmax(1)
        right.append(predicted == truth)
        predictions.append(predicted)
        labels.append(truth)
        if domain_features is not None:
            features.append(domain_features)
        outcomes = Outcomes.of(logits.double().numpy(), truth.numpy())
        scores.append(_score(held.domain, held.seen, predicted, truth, len(data.classes), outcomes))
    probe = probe_domains(features, labels, data.domains) if len(features) == len(data.domains) else None
    use = shortcut(trained, held_out, right, data_root)
    commonest = _most_frequent(torch.cat(predictions), data.classes)
    worst = _worst(scores, data.classes)
    return Audit(trained.run, data.classes, tuple(scores), commonest, *worst, probe, use, trained.average)


def _score(domain: str, seen: bool, predicted: Tensor, truth: Tensor, classes: int, outcomes: Outcomes) -> DomainAudit:
    confusion = (truth * classes + predicted).bincount(minlength=classes**2).reshape(classes, classes).double()
    counts, right = confusion.sum(1).long(), confusion.diagonal()
    accuracy = float(right.sum() / len(truth))
    return DomainAudit(domain, seen, len(truth), accuracy, right / counts, counts, confusion, outcomes)


def _most_frequent(predictions: Tensor, classes: tuple[str, ...]) -> MostFrequentPrediction:
    counts = predictions.bincount()
    return MostFrequentPrediction(classes[int(counts.argmax())], float(counts.max()) / len(predictions))


def _worst(scores: list[DomainAudit], classes: tuple[str, ...]) -> tuple[WorstPair | None, WorstPair | None]:
    """Of classes with enough images and, where it is worse, of the others."""
    pairs = [
        WorstPair(score.domain, classes[c], float(score.per_class[c]), int(score.counts[c]))
        for score in scores
        for c in range(len(classes))
        if score.counts[c] and score.per_class[c] < 1
    ]
    worst, few = (
        min((pair for pair in pairs if (pair.images >= FEWEST) == many), key=lambda pair: pair.accuracy, default=None)
        for many in (True, False)
    )
    return worst, few if few and (worst is None or few.accuracy < worst.accuracy) else None


@dataclass(frozen=True)
class SelectedAudit:
    """A run, the choices of each rule in it, and the audit of its model, which says of which step its weights are."""

    run: Run
    choices: Mapping[str, Selection]
    audit: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        run = self.run
        chosen = {rule: {"step": choice.step, "accuracy": choice.accuracy} for rule, choice in self.choices.items()}
        facts = {"run": run.id, "algorithm": run.algorithm, "unseen": list(run.test_domains)}
        return facts | {"draw": run.draw, "trial": run.trial, "chosen": chosen, **self.audit}

    def __str__(self) -> str:
        weights = f" ({self.audit['weights']})" if "weights" in self.audit else ""
        rules = ", ".join(f"{rule} ({100 * choice.accuracy:.1f} %)" for rule, choice in self.choices.items())
        return f"{self.run}, draw {self.run.draw}: chosen by {rules}. {self.audit['sentence']}{weights}"


def selected_runs(collection: Collection, wanted: RunFilter) -> dict[Run, dict[str, Selection]]:
    """{run: {rule: its choice}} of every run that some rule chose for its unseen domain and trial."""
    chosen: dict[Run, dict[str, Selection]] = {}
    for curves in collection.experiments().values():
        for search, draws in searches(of_models(curves)).items():
            named = wanted.dataset is None or is_named(wanted.dataset, draws[0].run.dataset)
            if named and wanted.fits(search):
                for rule in RULES:
                    if choice := select(draws, search.column.unseen, rule):
                        chosen.setdefault(choice.run, {})[rule] = choice
    return chosen


def audit_selected(folder: Path, wanted: RunFilter, data_root: Path | None, device: str) -> Iterator[SelectedAudit]:
    """Audits the selected models that were not audited before; runs without a model are skipped."""
    any_audited = False
    data: dict[tuple[str, int], Environments] = {}
    chosen = selected_runs(collect(folder).finished(), wanted)
    with progress.show("audits of selected models", len(chosen)) as advance:
        for run, choices in chosen.items():
            run_folder = RunFolder(folder, run)
            summary = run_folder.read_audit()
            if summary is None and run_folder.model_file.is_file():
                known = data.get((run.dataset, run.image_size))
                trained = restore(run_folder.path, data_root=data_root, device=device, environments=known)
                data = {(run.dataset, run.image_size): trained.environments}
                summary = _summary(audit(trained, data_root)) | {"weights": trained.weights}
                run_folder.save_audit(summary)
            if summary is not None:
                any_audited = True
                yield SelectedAudit(run, choices, summary)
            advance(1)
    if not any_audited:
        raise UserError(f"{folder}: no run there was chosen by a rule and has kept its model")


def _summary(full: Audit) -> dict[str, Any]:
    """The part of an audit that is saved with its run."""
    return {
        "accuracy": {score.domain: score.accuracy for score in full.scores},
        "commonest": asdict(full.commonest),
        "probe": None if full.probe is None else {"accuracy": full.probe.accuracy, "chance": full.probe.chance},
        "shortcut": None if full.use is None else asdict(full.use),
        "sentence": full.sentences[0] if full.sentences else "",
    }
