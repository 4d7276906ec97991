"""The two kinds of shift as a figure (the paper's Figure 1), from an estimate."""

from matplotlib.figure import Figure

from domainwise.analysis.shift import DatasetShift, profile
from domainwise.report.canvas import grid, headline, plain

TRAIN, TEST = "#2166ac", "#b2182b"


def shift_figure(measured: DatasetShift) -> Figure:
    """Per unseen domain, along the direction in which the features vary most: both densities, and p(y|z) on each side.

    Shaded: where only one of them has mass, which is diversity shift. Where both have, the distance of the two lines at
    the right is correlation shift. The first seed is drawn; the numbers are means over all.
    """
    first = {shift.unseen: shift for shift in reversed(measured.shifts)}
    figure, axes = grid(len(measured.unseen), 2, size=2.0, margins=(3.6, 0.9))
    for unseen, (left, right) in zip(measured.unseen, axes, strict=True):
        drawn = profile(first[unseen].sides, len(measured.classes))
        at, p, q = drawn.at.numpy(), drawn.p.numpy(), drawn.q.numpy()
        for density, colour, label in ((p, TRAIN, "training"), (q, TEST, "unseen")):
            left.plot(at, density, color=colour, linewidth=1.5, label=label)
        for density, other, colour in ((p, q, TRAIN), (q, p, TEST)):
            alone = other < 0.01 * other.max()
            left.fill_between(at, 0, density, where=alone, color=colour, alpha=0.25, linewidth=0)
        for line, colour in ((drawn.p_label, TRAIN), (drawn.q_label, TEST)):
            right.plot(at, line.numpy(), color=colour, linewidth=1.5)
        left.set_title(f"diversity {measured.mean('diversity', unseen):.2f}", fontsize=9)
        right.set_title(f"correlation {measured.mean('correlation', unseen):.2f}", fontsize=9)
        left.set_ylabel(f"{plain(unseen, 20)} unseen\n\np(z), q(z)", fontsize=8)
        right.set_ylabel(f"p(y = {plain(measured.classes[drawn.label], 16)} | z)", fontsize=8)
        right.set_ylim(-0.03, 1.03)
        left.set_ylim(bottom=0)
        left.set_yticks([])
        for axis in (left, right):
            axis.tick_params(labelsize=7)
            axis.set_xlim(at[0], at[-1])
            axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(fontsize=7, frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("main direction of the features z", fontsize=8)
    headline(figure, f"{plain(measured.dataset)}: training against unseen domains", 10)
    return figure
