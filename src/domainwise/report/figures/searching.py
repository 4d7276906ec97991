"""What searching buys: accuracy against the number of draws that a rule may choose from."""

from matplotlib.ticker import MaxNLocator

from domainwise.protocol.statistics import Estimate, searched, selected
from domainwise.report.figures.request import Drawing, Request, TooFew
from domainwise.report.figures.style import legend, line_with_band, panels
from domainwise.report.palette import LIGHT, slots
from domainwise.sweep.tables import table_of

RULES = ("training-domain", "oracle")
"""One that does not look at the unseen domain, and one that does."""


def draws(request: Request) -> Drawing:
    """Mean accuracy over unseen domains against draws, by a rule that looks at them and by one that does not.

    Of n draws that were made, a point at k is what the rule is expected to choose from k of them taken at random; where
    all trials have as many, the last point is the table's. Bands are standard errors over trials. A method with one
    draw is not shown.
    """
    by_rule = {rule: _in_order(request, rule) for rule in dict.fromkeys((request.rule, *RULES))}
    by_rule = {rule: own for rule, own in by_rule.items() if own}
    if not by_rule:
        hint = "domainwise sweep --dataset {dataset} --algorithms ERM,DAT --hparams 8 --out {folder}"
        raise TooFew(request, "two draws of a method on every domain", hint)
    figure, axes = panels([f"by {rule} validation" for rule in by_rule], size=3.0)
    styles = slots(name for own in by_rule.values() for name in own)
    sentences = []
    for axis, (rule, own) in zip(axes, by_rule.items(), strict=True):
        for name, found in own.items():
            colour, dash = styles[name]
            means, errors = [e.mean for e in found], [e.error for e in found]
            line_with_band(axis, range(1, 1 + len(found)), means, errors, LIGHT[colour], name, dash)
            sentences.append(f"{name} by {rule} validation: {found[0]} % with 1 draw, {found[-1]} with {len(found)}")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="draws", ylabel="accuracy on the unseen domain, %")
    legend(figure, axes[0])
    return Drawing(figure, sentences)


def _in_order(request: Request, rule: str) -> dict[str, list[Estimate]]:
    """What was searched by a rule, in more than one draw, as its table orders methods."""
    found = searched(request.curves, request.columns, rule)
    table = table_of(request.group, selected(request.curves, rule), rule)
    return {row.method: found[row.method] for row in table.rows if len(found[row.method]) > 1}
