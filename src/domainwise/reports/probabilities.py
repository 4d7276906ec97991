"""Reliability diagrams and risk-coverage curves: how far a model's probabilities can be acted on, seen and unseen."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domainwise.analysis.audit import Audit
from domainwise.protocol.calibration import Outcomes, expected_calibration_error, reliability, risk_coverage
from domainwise.reports.style import LIGHT, SMALL, SOFT, grid, in_style, plain

SEEN, UNSEEN = LIGHT[1], LIGHT[2]
POINTS = 400
"""Of a curve, at most."""


@in_style
def probability_figure(audits: Sequence[Audit], unseen: str) -> Figure:
    """One row per model: reliability, and risk by coverage, on held-out images of training domains and the unseen one.

    The area of a point is the share of images in its bin. The expected calibration errors are those of the same bins.
    """
    figure, axes = grid(len(audits), 2, size=2.4, margins=(1.6, 0.6))
    for one, (left, right) in zip(audits, axes, strict=True):
        known = {
            "training domains, held out": (SEEN, _joined([s.outcomes for s in one.scores if s.seen])),
            f"{plain(unseen, 24)}, unseen": (UNSEEN, _joined([s.outcomes for s in one.scores if s.domain == unseen])),
        }
        left.plot([0, 1], [0, 1], color=SOFT, linewidth=0.8, linestyle=":")
        errors = []
        for label, (colour, outcomes) in known.items():
            if outcomes is not None:
                _reliability(left, outcomes, colour, label)
                _risk(right, outcomes, colour, label)
                errors.append(f"{100 * expected_calibration_error(outcomes):.1f}")
        left.set_title(plain(f"{one.method}: calibration error {' and '.join(errors)} %", 60), loc="left")
        left.set(xlim=(0, 1.02), ylim=(0, 1.02))
        left.set_ylabel("share right", fontsize=SMALL)
        right.set(xlim=(0, 1.02))
        right.set_ylim(bottom=0)
        right.set_ylabel("error rate", fontsize=SMALL)
    axes[0][0].legend(fontsize=SMALL, loc="upper left")
    axes[-1][0].set_xlabel("confidence", fontsize=SMALL)
    axes[-1][1].set_xlabel("coverage: share of images answered", fontsize=SMALL)
    return figure


def _joined(parts: Sequence[Outcomes]) -> Outcomes | None:
    if not parts:
        return None
    names = ("confidence", "correct", "truth")
    return Outcomes(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _reliability(axis: Axes, outcomes: Outcomes, colour: str, label: str) -> None:
    confidence, accuracy, share = reliability(outcomes)
    axis.plot(confidence, accuracy, color=colour, linewidth=1.2, label=label)
    axis.scatter(confidence, accuracy, s=4 + 160 * share, color=colour, linewidth=0, alpha=0.7, clip_on=False)


def _risk(axis: Axes, outcomes: Outcomes, colour: str, label: str) -> None:
    coverage, risk = risk_coverage(outcomes)
    every = max(1, len(coverage) // POINTS)
    axis.plot(coverage[::-1][::every][::-1], risk[::-1][::every][::-1], color=colour, linewidth=1.4, label=label)
