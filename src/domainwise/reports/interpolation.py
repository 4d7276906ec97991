"""The picture of a line between the start and the end of a training."""

from matplotlib.figure import Figure

from domainwise.models.interpolate import Interpolation
from domainwise.reports.style import LIGHT, SOFT, grid, headline, line, plain


def interpolation_figure(found: Interpolation) -> Figure:
    """Accuracy against alpha: held-out samples of training domains dashed, unseen domains solid, the choice marked."""
    figure, axes = grid(1, 1, size=3.4, margins=(2.2, 0.6))
    axis = axes[0][0]
    at = [point.alpha for point in found.points]
    for number, (domain, split) in enumerate(found.parts):
        unseen = domain in found.run.test_domains
        values = [100 * point.accuracy((domain, split)) for point in found.points]
        label = f"{plain(domain, 24)} ({'unseen' if unseen else 'held out'})"
        line(axis, at, values, LIGHT[(number + 1) % len(LIGHT)], label, 0 if unseen else 1)
    if found.best is not None:
        axis.axvline(found.best.alpha, color=SOFT, linewidth=0.8, linestyle=":")
        where = (found.best.alpha, 0.02)
        axis.annotate("chosen ", where, xycoords=("data", "axes fraction"), ha="right", fontsize=7, color=SOFT)
    axis.set_xlabel("alpha: from the start (0) to the end (1) of training")
    axis.set_ylabel("accuracy, per cent")
    axis.legend(fontsize=7, frameon=False)
    headline(figure, f"{found.run.algorithm} on {plain(found.rebuilt.environments.name)}, trial {found.run.trial}", 10)
    return figure
