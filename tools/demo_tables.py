"""Tables about the demo: how its settings were chosen, and its result with other seeds, threads and precisions."""

from math import comb

from domainwise.core.table import Table
from domainwise.protocol.selection import Method, select
from domainwise.protocol.statistics import Estimate, estimate, selected
from domainwise.sweeps.tables import groups, table_of
from published_results import Results


def validation(results: Results, until: str = "") -> str:
    """By what settings are chosen: accuracy on held-out images of the training domains, and that on the unseen domain.

    Both at the step that training-domain validation selects, mean ± standard error over runs; with two digits, because
    a choice may depend on the second.
    """
    by_method: dict[str, list[tuple[float, float]]] = {}
    curves = {curve.run: curve.until(int(until)) if until else curve for curve in results.collection.curves}
    for run in results.runs:
        curve, unseen = curves[run], run.test_domains[0]
        choice, held_out = select([curve], unseen, "training-domain"), curve.mean(run.train_domains, "out")
        assert choice is not None and held_out is not None
        accuracies = float(held_out[curve.steps.index(choice.step)]), choice.accuracy
        by_method.setdefault(str(Method.of(run)), []).append(accuracies)
    rows = [
        [name, str(len(values)), *(_exact(estimate([100 * pair[i] for pair in values])) for i in (0, 1))]
        for name, values in by_method.items()
    ]
    return Table(("settings", "runs", "validation", "unseen domain"), rows).markdown_rows()


def _exact(value: Estimate) -> str:
    return f"{value.mean:.2f}" if value.error is None else f"{value.mean:.2f} ± {value.error:.2f}"


def robustness(results: Results, name: str, rule: str) -> str:
    """A method against ERM in every repetition of an experiment with another seed, precision or number of threads."""
    rows = []
    repetitions = {group.experiment: group for group in groups(results.collection.finished())}
    for settings in sorted(repetitions, key=lambda one: (one.precision != "fp32", one.seed, one.threads)):
        group = repetitions[settings]
        by_name = {str(row.method): row for row in table_of(group, selected(group.curves, rule), rule).rows}
        row, baseline = by_name[name], by_name["ERM"]
        gap = row.difference
        assert gap is not None
        tested = f"{gap.ahead} of {gap.n}", f"{sign_test(gap.ahead, gap.behind):.2g}", f"{gap.p:.2g}"
        facts = str(settings.seed), settings.precision, str(settings.threads), str(baseline.average), str(row.average)
        rows.append([*facts, str(gap), *tested, "yes" if gap.clear else "no"])
    tests = ("pairs ahead", "p of the sign test", "p of the t-test", "clear")
    headings = ("seed", "precision", "threads", "ERM", name, f"{name} − ERM", *tests)
    return Table(headings, rows, labels=3).markdown_rows()


def sign_test(ahead: int, behind: int) -> float:
    """The probability that so many pairs or more agree if neither method is better, two-sided; ties do not count."""
    n, most = ahead + behind, max(ahead, behind)
    return min(1.0, 2 * sum(comb(n, k) for k in range(most, n + 1)) / 2**n)
