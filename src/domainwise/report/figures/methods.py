"""All methods of an experiment beside each other."""

import math
import statistics

from matplotlib.figure import Figure

from domainwise.protocol.dataset_names import title
from domainwise.protocol.statistics import selected
from domainwise.report.figures.request import Drawing, Request, TooFew
from domainwise.report.figures.style import HAIR, SOFT
from domainwise.report.palette import FIRST, LIGHT, NEUTRAL
from domainwise.sweep.tables import table_of

INCHES = 0.21
"""Of height per method."""
FAR = 15.0
"""Points below the median method from which one is named at the edge, so that it does not squeeze all others."""


def methods(request: Request) -> Drawing:
    """Every method's average over unseen domains with its standard error, the best first; domains are small dots.

    Methods far below the others are numbers at the left edge.
    """
    table = table_of(request.group, selected(request.curves, request.rule), request.rule)
    known = [(row, row.average) for row in table.rows if row.average is not None]
    if len(known) < 2:
        hint = "domainwise sweep --dataset {dataset} --algorithms ERM,DAT --hparams 1 --out {folder}"
        raise TooFew(request, "two methods judged on every domain", hint)
    known.sort(key=lambda item: item[1].mean)
    figure = Figure(figsize=(6.4, INCHES * len(known) + 0.9), layout="constrained")
    axis = figure.subplots()
    lowest = statistics.median(average.mean for _, average in known) - FAR
    near = [cell.mean for row, average in known if average.mean >= lowest for cell in row.cells.values()]
    edge, right = min(near), max(near)
    for place, (row, average) in enumerate(known):
        name = row.method.split(" (")[0]
        colour = LIGHT[{NEUTRAL: 0, FIRST: 1}.get(name, 3)]
        domains = [cell.mean for cell in row.cells.values()]
        axis.scatter(domains, [place] * len(domains), s=9, color=colour, alpha=0.4, linewidths=0)
        if average.mean < lowest:
            axis.text(edge, place, f"◂ {average}", color=colour, va="center", size="small")
            continue
        axis.errorbar([average.mean], [place], xerr=[average.error], fmt="o", color=colour, capsize=2.5, markersize=5)
        if name == NEUTRAL:
            axis.axvline(average.mean, color=SOFT, linewidth=0.7, linestyle=(0, (4, 2)))
    axis.set_yticks(range(len(known)), [row.method for row, _ in known])
    axis.grid(axis="y", color=HAIR)
    axis.set(xlabel="accuracy on the unseen domain, %", ylim=(-0.7, len(known) - 0.3))
    margin = 0.04 * (right - edge) or 1.0
    axis.set_xlim(edge - margin, right + margin)
    axis.set_title(f"{title(request.group.experiment.dataset)}, by {request.rule} validation")
    top = known[-1][1].mean
    best = [f"{row.method}, {average} %" for row, average in known if math.isclose(average.mean, top)]
    return Drawing(figure, [f"best on average{', alike' if len(best) > 1 else ''}: {'; '.join(best)}"])
