"""Probabilities to act on: temperature, thresholds to abstain, and conformal sets, from samples of several domains.

    temperature   p(y|x) = softmax(f(x) / T)_y,  T minimises the mean over domains of the negative log-likelihood
                  Guo et al. 2017, https://arxiv.org/abs/1706.04599
    coverage      the threshold of max_y p(y|x) above which this share of every domain's samples lies, on average
    risk          the lowest threshold at which the error rate of answers is below a limit in every domain, by an upper
                  confidence bound (Clopper and Pearson 1934) that is corrected for all thresholds that are tried;
                  Learn then Test, Angelopoulos et al. 2021, https://arxiv.org/abs/2110.01052
    sets          {y: 1 - p(y|x) <= q},  q = max_d q_d,  q_d the ceil((n_d + 1) level)-th smallest 1 - p(y_i|x_i)
                  split conformal prediction, Sadinle et al. 2019, https://arxiv.org/abs/1609.00451

A new sample that is exchangeable with those of one calibration domain is in its set with at least the probability
`level`, because q is at least that domain's quantile. Of all scores, 1 - p gives the smallest sets at a level, and its
threshold reads as a probability: classes of at least 1 - q.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from domainwise.core.errors import UserError
from domainwise.core.parsing import Positive

Floats = npt.NDArray[np.float64]
CalibratedOn = Literal["unseen", "held-out"]
SOURCES: dict[CalibratedOn, str] = {
    "unseen": "on domains that the predicting model had not seen",
    "held-out": "on held-out images of the training domains: too confident on new domains",
}
BINS = 15
LOWEST, HIGHEST = 0.05, 50.0
"""Temperatures that are tried."""
DELTA = 0.05
"""The probability that a limit of risk does not hold, for samples like those of a calibration domain."""
THRESHOLDS = 1 - np.geomspace(1e-4, 1, 50)
"""Of confidence, tried for a limit of risk; fixed beforehand, as the correction for their number requires."""


@dataclass(frozen=True)
class Calibration:
    """The temperature of a model, and on what it was fitted."""

    temperature: float
    source: CalibratedOn
    domains: Mapping[str, Positive]  # samples
    nll: tuple[float, float]  # before and after, mean over domains
    ece: tuple[float, float]

    def __str__(self) -> str:
        return (
            f"temperature {self.temperature:.3g}, fitted {SOURCES[self.source]} ({', '.join(self.domains)}; "
            f"{sum(self.domains.values()):,} samples); expected calibration error {100 * self.ece[0]:.1f} -> "
            f"{100 * self.ece[1]:.1f} %"
        )

    @property
    def warnings(self) -> list[str]:
        """Why it may be useless, in sentences."""
        found = []
        if not 1.01 * LOWEST < self.temperature < HIGHEST / 1.01:
            limit = "lowest" if self.temperature < 1 else "highest"
            found.append(
                f"the temperature {self.temperature:.3g} is the {limit} that is tried: the samples set no limit"
            )
        if self.ece[1] > self.ece[0]:
            found.append(
                f"the expected calibration error rose from {100 * self.ece[0]:.1f} to {100 * self.ece[1]:.1f} % on the "
                "very samples that the temperature was fitted on"
            )
        least = min(self.domains, key=lambda domain: self.domains[domain])
        advice = f"calibrate on more samples: {least} has {self.domains[least]}"
        return [f"{sentence}; {advice}" for sentence in found]


@dataclass(frozen=True)
class Outcomes:
    """Calibrated predictions for the samples of one domain, and whether they were right."""

    confidence: Floats  # max_y p(y|x)
    correct: npt.NDArray[np.bool_]
    truth: Floats  # p of the true class

    @classmethod
    def of(cls, logits: Floats, labels: npt.NDArray[np.int64], temperature: float = 1.0) -> "Outcomes":
        from scipy.special import log_softmax

        p = np.exp(log_softmax(np.asarray(logits, np.float64) / temperature, axis=1))
        return cls(p.max(1), np.argmax(logits, axis=1) == labels, p[np.arange(len(p)), labels])


Logits = Mapping[str, tuple[Floats, npt.NDArray[np.int64]]]
"""{domain: logits [N, classes] and labels [N]}."""


def negative_log_likelihood(logits: Logits, temperature: float = 1.0) -> float:
    """The mean over domains, each counting equally."""
    from scipy.special import log_softmax

    means = []
    for values, labels in logits.values():
        likelihoods = log_softmax(np.asarray(values, np.float64) / temperature, axis=1)
        means.append(-likelihoods[np.arange(len(labels)), labels].mean())
    return float(np.mean(means))


def fit_temperature(logits: Logits) -> float:
    """The minimum between LOWEST and HIGHEST; the loss is convex in 1 / T, so it is the only one."""
    from scipy.optimize import minimize_scalar

    minimum = minimize_scalar(
        lambda inverse: negative_log_likelihood(logits, 1 / inverse),
        bounds=(1 / HIGHEST, 1 / LOWEST),
        method="bounded",
        options={"xatol": 1e-7},
    )
    return float(1 / minimum.x)


def calibrate_logits(logits: Logits, source: CalibratedOn) -> tuple[Calibration, dict[str, Outcomes]]:
    """The temperature for these logits, and the calibrated predictions of every domain."""
    temperature = fit_temperature(logits)
    before = {domain: Outcomes.of(*both) for domain, both in logits.items()}
    after = {domain: Outcomes.of(*both, temperature) for domain, both in logits.items()}
    nll = (negative_log_likelihood(logits), negative_log_likelihood(logits, temperature))
    ece = (_mean_ece(before), _mean_ece(after))
    counts = {domain: len(labels) for domain, (_, labels) in logits.items()}
    return Calibration(temperature, source, counts, nll, ece), after


def _mean_ece(domains: Mapping[str, Outcomes]) -> float:
    return float(np.mean([expected_calibration_error(one) for one in domains.values()]))


def reliability(outcomes: Outcomes, bins: int = BINS) -> tuple[Floats, Floats, Floats]:
    """Mean confidence, accuracy and share of samples in bins of equal width, of those that are not empty."""
    number = np.minimum((outcomes.confidence * bins).astype(int), bins - 1)
    count = np.bincount(number, minlength=bins)
    filled = count > 0
    confidence = np.bincount(number, outcomes.confidence, bins)[filled] / count[filled]
    accuracy = np.bincount(number, outcomes.correct, bins)[filled] / count[filled]
    return confidence, accuracy, count[filled] / len(number)


def expected_calibration_error(outcomes: Outcomes, bins: int = BINS) -> float:
    """sum_b n_b / n |accuracy_b - confidence_b| over bins of equal width."""
    confidence, accuracy, share = reliability(outcomes, bins)
    return float((share * np.abs(accuracy - confidence)).sum())


def risk_coverage(outcomes: Outcomes) -> tuple[Floats, Floats]:
    """Shares of samples answered, the most confident first, and the error rates of these answers."""
    wrong = ~outcomes.correct[np.argsort(-outcomes.confidence, kind="stable")]
    answered = np.arange(1, len(wrong) + 1)
    return answered / len(wrong), np.cumsum(wrong) / answered


def coverage_threshold(domains: Mapping[str, Outcomes], coverage: float) -> float:
    """The highest confidence that this share of samples reaches, every domain counting equally."""
    values = np.concatenate([one.confidence for one in domains.values()])
    shares = np.concatenate([np.full(len(one.confidence), 1 / len(one.confidence)) for one in domains.values()])
    order = np.argsort(-values, kind="stable")
    reached = np.cumsum(shares[order]) / len(domains)
    first = min(int(np.searchsorted(reached, coverage - 1e-12)), len(values) - 1)
    return float(values[order][first])


def error_bound(wrong: int, answered: int, delta: float) -> float:
    """The upper confidence bound of an error rate at level 1 - delta, after Clopper and Pearson."""
    from scipy import stats

    return 1.0 if wrong >= answered else float(stats.beta.ppf(1 - delta, wrong + 1, answered - wrong))


def risk_threshold(domains: Mapping[str, Outcomes], risk: float, delta: float = DELTA) -> float:
    """The lowest of THRESHOLDS that keeps the error rate of every domain at most `risk`; UserError if none does.

    The bounds hold for all thresholds at once (Bonferroni). Every domain must pass, so that their number needs none.
    """
    bounds = [_worst_bound(domains, threshold, delta / len(THRESHOLDS)) for threshold in THRESHOLDS]
    passed = [threshold for threshold, bound in zip(THRESHOLDS, bounds, strict=True) if bound <= risk]
    if not passed:
        raise UserError(
            f"no threshold keeps the error rate at {risk:g} on every calibration domain with {100 * (1 - delta):g} % "
            f"confidence; the lowest bound is {min(bounds):.3g}: allow more risk, or calibrate on more samples",
            argument="abstain",
        )
    return float(min(passed))


def _worst_bound(domains: Mapping[str, Outcomes], threshold: float, delta: float) -> float:
    bounds = []
    for one in domains.values():
        answered = one.confidence >= threshold
        bounds.append(error_bound(int((answered & ~one.correct).sum()), int(answered.sum()), delta))
    return max(bounds)


def samples_needed(level: float) -> int:
    """Of a domain, for conformal sets at this level: with fewer every set holds every class."""
    return int(np.ceil(level / (1 - level) - 1e-9))


def set_threshold(domains: Mapping[str, Outcomes], level: float) -> float:
    """The lowest probability of a class in a set: 1 - q of the worst domain; 0 where one has too few samples."""
    return min(_domain_threshold(one, level) for one in domains.values())


def _domain_threshold(outcomes: Outcomes, level: float) -> float:
    rank = int(np.ceil((len(outcomes.truth) + 1) * level - 1e-9))
    if rank > len(outcomes.truth):
        return 0.0
    return float(np.sort(outcomes.truth)[::-1][rank - 1])
