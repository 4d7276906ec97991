"""What did it use? Accuracy where it hides in averages, domains in the features, and the dataset's own shortcut."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from domainwise.analysis.answers import answers_and_features, looks
from domainwise.analysis.probe import Probe, probe_domains
from domainwise.analysis.shortcuts import Use, percent, shortcut
from domainwise.core.phrasing import counted
from domainwise.engine.restore import TrainedRun
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import method

CONSTANT = 0.95
"""Share of one answer from which on a model is said to look at nothing."""
FEWEST = 10
"""Images of a class in a domain below which its accuracy means little: the worst of these is told apart."""


@dataclass(frozen=True)
class DomainScore:
    """Accuracy on images of one domain that training did not see, whole and per class (NaN without images)."""

    domain: str
    seen: bool
    images: int
    accuracy: float
    per_class: Tensor
    counts: Tensor


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
class Commonest:
    """The answer given most often, and its share."""

    label: str
    share: float


@dataclass(frozen=True)
class Audit:
    """All that was found of one model."""

    run: Run
    classes: tuple[str, ...]
    scores: tuple[DomainScore, ...]
    commonest: Commonest
    worst: WorstPair | None
    """Of classes with enough images, where not all are right."""
    worst_of_few: WorstPair | None
    """Of classes with fewer images, if it is worse still."""
    probe: Probe | None
    use: Use | None

    @property
    def name(self) -> str:
        return method(self.run)

    @property
    def sentences(self) -> list[str]:
        """What was found, the dataset's own question first."""
        if self.commonest.share > CONSTANT:
            return [
                f"Answers {self.commonest.label} in {percent(self.commonest.share)} of the cases, whatever it sees."
            ]
        found = [self.use.sentence] if self.use else []
        average = sum(score.accuracy for score in self.scores) / len(self.scores)
        if self.worst:
            where = f" of classes with at least {FEWEST} images" if self.worst_of_few else ""
            found.append(f"Worst{where} at {self.worst}, {percent(average)} on average over the domains.")
        if self.worst_of_few:
            found.append(f"Of classes with fewer than {FEWEST} images worst at {self.worst_of_few}.")
        if average == 1:
            found.append("Every answer is right.")
        return found + ([self.probe.sentence] if self.probe else [])


def audit(trained: TrainedRun, data_root: Path | None = None) -> Audit:
    """Asks a trained model everything that its data can answer."""
    data = trained.environments
    seen = looks(trained)
    scores, right, features, labels, given = [], [], [], [], []
    for look in seen:
        truth = data.labels[look.rows.to(data.labels.device)].cpu()
        told, own_features = answers_and_features(trained, data.images[look.rows.to(data.images.device)], look.domain)
        right.append(told == truth)
        given.append(told)
        labels.append(truth)
        if own_features is not None:
            features.append(own_features)
        scores.append(_score(look.domain, look.seen, right[-1].double(), truth, len(data.classes)))
    probe = probe_domains(features, labels, data.domains) if len(features) == len(seen) else None
    use = shortcut(trained, seen, right, data_root)
    commonest = _commonest(torch.cat(given), data.classes)
    return Audit(trained.run, data.classes, tuple(scores), commonest, *_worst(scores, data.classes), probe, use)


def _score(domain: str, seen: bool, right: Tensor, truth: Tensor, classes: int) -> DomainScore:
    counts = truth.bincount(minlength=classes)
    per_class = torch.zeros(classes, dtype=torch.float64).index_add_(0, truth, right) / counts
    return DomainScore(domain, seen, len(truth), float(right.mean()), per_class, counts)


def _commonest(given: Tensor, classes: tuple[str, ...]) -> Commonest:
    counts = given.bincount()
    return Commonest(classes[int(counts.argmax())], float(counts.max()) / len(given))


def _worst(scores: list[DomainScore], classes: tuple[str, ...]) -> tuple[WorstPair | None, WorstPair | None]:
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
