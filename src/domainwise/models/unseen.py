"""The accuracy, or another metric, to expect of a model on domains it never saw; part of its card.

It comes from runs that left domains out, and is honest: draw, candidate and step were selected by training-domain
validation, which does not look at the domain left out. The shipped model itself
may be trained on all domains; then the estimate is that of its method.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from domainwise.core.phrasing import counted
from domainwise.protocol.metrics import ACCURACY, Metric, find_metric
from domainwise.protocol.records import Record
from domainwise.protocol.runs import TEST_ROWS
from domainwise.protocol.saved_weights import RULE
from domainwise.protocol.selection import Curve, Method
from domainwise.protocol.statistics import estimate, selected

NONE = "no domain was left out, so nothing is known about unseen ones; compare or tune leave domains out"


LAST = "last step"
"""In place of a selection rule, for a model of the last step."""


def unseen_estimate(curves: Sequence[Curve], method: Method, metric: Metric = ACCURACY) -> dict[str, Any] | None:
    """Of a method, over every pair of domain left out and trial; None if no run left a domain out."""
    by_column = selected(curves, RULE, metric).get(method, {})
    return _summary({column.unseen: list(by_trial.values()) for column, by_trial in by_column.items()}, RULE, metric)


def estimate_of_run(records: Iterable[Record], domains: Sequence[str], rule: str) -> dict[str, Any] | None:
    """Of one run on some of its test domains, from its evaluation at the step of its model."""
    of_domains = {row.domain: [100 * row.accuracy] for row in records if row.split == "in" and row.domain in domains}
    return _summary(of_domains, rule)


def _summary(values_of: Mapping[str, Sequence[float]], rule: str, metric: Metric = ACCURACY) -> dict[str, Any] | None:
    """As plain JSON values, as tables show them."""
    if not values_of:
        return None
    over_pairs = estimate([value for values in values_of.values() for value in values])
    of_domains = {domain: estimate(values) for domain, values in values_of.items()}
    domains = {domain: one.mean for domain, one in of_domains.items()}
    worst = min(domains, key=lambda domain: metric.goodness(domains[domain]))
    return {
        "metric": metric.name,
        "rule": rule,
        "pairs": over_pairs.n,
        "mean": over_pairs.mean,
        "error": over_pairs.error if over_pairs.n > 1 else None,
        "worst": {"domain": worst, "mean": domains[worst]},
        "domains": domains,
        "errors": {domain: one.error for domain, one in of_domains.items()},
    }


def describe_test_rows(summary: Mapping[str, Any]) -> str:
    """In words: the accuracy on rows that are given as test, of domains that were trained on."""
    pairs, worst = counted(summary["pairs"], "domain"), summary["worst"]
    return (
        f"accuracy on {TEST_ROWS} {summary['mean']:.1f} %, mean over {pairs}, {worst['mean']:.1f} % on the worst "
        f"({worst['domain']}): nothing about unseen domains"
    )


def describe_unseen(training: Mapping[str, Any]) -> str:
    """What a model's card knows of unseen domains, in words."""
    if training.get("last_layer"):
        return "accuracy on unseen domains is not known: the last layer was trained anew; evaluate it on new domains"
    return describe_estimate(training.get("unseen"))


def describe_estimate(summary: Mapping[str, Any] | None) -> str:
    """In words."""
    if not summary:
        return NONE
    metric = metric_of(summary)
    percent = " %" if metric.percent else ""
    mean = metric.format(summary["mean"])
    error = "" if summary["error"] is None else f" ± {metric.format(summary['error'])}"
    pairs, worst = counted(summary["pairs"], "pair"), summary["worst"]
    how = f"at the {LAST}" if summary["rule"] == LAST else f"selected by {summary['rule']} validation{metric.selecting}"
    return (
        f"{metric.title} on unseen domains {mean}{error}{percent} over {pairs} of domain left "
        f"out and trial, {metric.format(worst['mean'])}{percent} on the worst ({worst['domain']}); {how}"
    )


def metric_of(summary: Mapping[str, Any]) -> Metric:
    """What an estimate is of; those of earlier versions are of accuracy."""
    return find_metric(summary.get("metric", ACCURACY.name))
