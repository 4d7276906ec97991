"""Drift: the distance between new, unlabelled data and the training domains, in the features of a model.

New samples are compared with the model's reference features, of held-out samples of every training domain, and with all
of these together, by the kernel two-sample test. Drift is reported only if they differ from each: for data from a
training domain (or from an even mixture of all) the probability of a false alarm is at most LEVEL.

The score is a number to plot over time and to set an alarm on: MMD^2 to the nearest training domain, or to all of them
together, with a kernel whose width depends on the reference features alone: a scale that is fixed for a model.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.core.seeds import generator
from domainwise.core.table import Table, Tabular
from domainwise.models.mmd import PERMUTATIONS, TwoSamples, compare, distance, median_distance
from domainwise.models.model import Model

LEVEL = 0.01
LARGEST = 512
"""The test uses at most this many new samples: more would take long and hardly change its result."""
FEW = 20
"""With fewer samples, new ones or reference ones of a domain, only large differences are detected."""
TOGETHER = "all together"


@dataclass(frozen=True, repr=False)
class Drift(Tabular):
    """The distance of new samples to each training domain, and between the training domains."""

    samples: int
    references: Mapping[str, int]  # reference samples of each training domain; a single one cannot be compared
    domains: Mapping[str, TwoSamples]
    together: TwoSamples
    between: float | None  # the largest MMD^2 between two training domains; None for a single one
    score: float  # from 0, like a training domain, to 2; comparable between samples of one model
    score_between: float | None  # the largest score of a training domain against another; None for a single one

    @property
    def tests(self) -> dict[str, TwoSamples]:
        """Of each training domain that can be compared, and of all together."""
        return {**self.domains, TOGETHER: self.together}

    def as_table(self) -> Table:
        rows = [
            (
                row["domain"],
                str(row["held_out"]),
                "" if row["p"] is None else f"{row['mmd2']:.4f}",
                "" if row["p"] is None else f"{row['p']:.3f}",
            )
            for row in self.to_records()
        ]
        caption = f"{counted(self.samples, 'sample')} against held-out samples of each domain"
        if self.between is not None:
            distance = f"up to {self.between:.4f} from" if self.between > 0 else "not distinguishable from"
            caption += f"; the training domains are {distance} one another"
        return Table(
            ("training domain", "held out", "MMD²", "p"),
            rows,
            title="Distance to the training domains",
            caption=caption,
            notes=(self.sentence, self.score_sentence),
        )

    def to_records(self) -> list[dict[str, Any]]:
        """One row per training domain and one for all together; MMD^2 and p are None where one sample is too few."""
        together = sum(self.references[domain] for domain in self.domains)
        none = {"mmd2": None, "p": None}
        return [
            {"domain": domain, "held_out": held_out, **(asdict(self.tests[domain]) if domain in self.tests else none)}
            for domain, held_out in {**self.references, TOGETHER: together}.items()
        ]

    @property
    def nearest(self) -> str:
        return min(self.domains, key=lambda domain: self.domains[domain].mmd2)

    @property
    def drifted(self) -> bool:
        """Whether the samples differ from every training domain, and from their mixture."""
        return max(test.p for test in self.tests.values()) <= LEVEL

    @property
    def caveat(self) -> str:
        """A warning about too few samples, new ones or reference ones; empty if there are enough."""
        smallest = min(self.domains, key=lambda domain: self.references[domain])
        few = [f"{self.samples} samples"] if self.samples < FEW else []
        if self.references[smallest] < FEW:
            few.append(f"{self.references[smallest]} held-out samples of {smallest}")
        sentences = [f"With {' and '.join(few)} only a large difference shows."] if few else []
        if left_out := [domain for domain in self.references if domain not in self.domains]:
            sentences.append(f"Not compared with {', '.join(left_out)}: one held-out sample is too few.")
        return f" ({' '.join(sentences)})" if sentences else ""

    @property
    def sentence(self) -> str:
        """The result in words."""
        caveat = self.caveat
        if not self.drifted:
            alike, test = max(self.tests.items(), key=lambda item: item[1].p)
            like = "the training domains together" if alike == TOGETHER else alike
            return f"No drift: these samples cannot be distinguished from {like} (p = {test.p:.2g}).{caveat}"
        near = self.domains[self.nearest]
        size = ""
        if self.between is not None and self.between > 0:
            size = f", at {near.mmd2 / self.between:.1f} times the largest distance between training domains"
        return (
            f"Drift: these samples differ from every training domain; the nearest is {self.nearest} "
            f"(p = {near.p:.2g}){size}. Accuracies measured on the training domains need not hold here: label a few "
            f"and evaluate.{caveat}"
        )

    @property
    def score_sentence(self) -> str:
        """The score, and what it can be compared with."""
        known = (
            f"; the training domains are up to {self.score_between:.4f} from one another" if self.score_between else ""
        )
        return f"Score {self.score:.4f} (0: like a training domain{known})."

    def as_json(self) -> dict[str, Any]:
        return {
            "drifted": self.drifted,
            "sentence": self.sentence,
            "score": self.score,
            "score_between": self.score_between,
            "samples": self.samples,
            "references": dict(self.references),
            "nearest": self.nearest,
            "domains": {domain: asdict(test) for domain, test in self.domains.items()},
            "together": asdict(self.together),
            "between": self.between,
        }


def drift(model: Model, inputs: Tensor, *, seed: int = 0, permutations: int = PERMUTATIONS) -> Drift:
    """Compares raw inputs, or a random subset of LARGEST, with the training domains."""
    comparable(model)
    if len(inputs) < 2:
        raise UserError(f"{len(inputs)} samples: drift needs at least 2 to compare, better {FEW} or more")
    chosen = torch.randperm(len(inputs), generator=generator("drift sample", seed))[:LARGEST].sort().values
    return drift_of_features(model, model.embed(inputs[chosen]).cpu(), seed=seed, permutations=permutations)


def comparable(model: Model) -> dict[str, Tensor]:
    """The reference features of the training domains that have two or more; UserError if none has."""
    reference = {domain: features for domain, features in model.reference.items() if features.shape[:1] > (1,)}
    if not reference:
        why = "its features depend on their batch" if model.card.algorithm == "ARM" else "it was fitted without any"
        raise UserError(f"this {model.card.algorithm} model keeps no features to compare with ({why})")
    return reference


def drift_of_features(model: Model, new: Tensor, *, seed: int = 0, permutations: int = PERMUTATIONS) -> Drift:
    """Compares features [N, F] of new samples with the training domains."""
    reference = comparable(model)
    if any(features.shape[1:] != new.shape[1:] for features in reference.values()):
        raise UserError("the model's reference features are not of its network: fit it again")
    width = median_distance(new, *reference.values())
    random = generator("drift", seed)
    tests = {domain: compare(features, new, width, random, permutations) for domain, features in reference.items()}
    everything = torch.cat(list(reference.values()))
    pairs = [compare(a, b, width, random, 1).mmd2 for a, b in combinations(reference.values(), 2)]
    together = compare(everything, new, width, random, permutations)
    sizes = {domain: len(features) for domain, features in model.reference.items()}
    fixed = median_distance(*reference.values())
    score = max(0.0, min(distance(features, new, fixed) for features in (*reference.values(), everything)))
    scores = [max(0.0, distance(a, b, fixed)) for a, b in combinations(reference.values(), 2)]
    return Drift(
        len(new),
        sizes,
        tests,
        together,
        max(pairs) if pairs else None,
        score,
        max(scores) if scores else None,
    )
