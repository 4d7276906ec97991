"""The picture of a line between the start and the end of a training."""

from matplotlib.figure import Figure

from domainwise.models.interpolate import Interpolation
from domainwise.reports.style import LIGHT, SOFT, footnote, headline, in_style, legend, line, panels, plain


@in_style
def interpolation_figure(found: Interpolation) -> Figure:
    """Accuracy against alpha: held-out samples of training domains dashed, unseen domains solid, the choice marked."""
    run = found.run
    figure, (axis,) = panels([""], height=3.4)
    at = [point.alpha for point in found.points]
    for number, (domain, split) in enumerate(found.parts):
        unseen = domain in run.test_domains
        values = [100 * point.accuracy((domain, split)) for point in found.points]
        label = f"{plain(domain, 24)} ({'unseen' if unseen else 'held out'})"
        line(axis, at, values, LIGHT[(number + 1) % len(LIGHT)], label, 0 if unseen else 1)
    axis.set(xlabel="alpha: from the start (0) to the end (1) of training", ylabel="accuracy, %")
    legend([axis])
    chosen = ""
    if found.best is not None:
        axis.axvline(found.best.alpha, color=SOFT, linewidth=0.8, linestyle=":")
        chosen = f" The dotted line is alpha {found.best.alpha:g}, which training-domain validation selects."
    headline(figure, f"{run.algorithm} on {plain(found.rebuilt.environments.name)}: between start and end of training")
    footnote(figure, f"One run: trial {run.trial}, {run.steps} steps.{chosen}")
    return figure
