"""Reliability diagrams and risk-coverage curves draw the numbers of `protocol.calibration`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from domainwise.protocol.calibration import Outcomes, expected_calibration_error, reliability
from domainwise.reports.probabilities import POINTS, probability_figure


def outcomes(seed: int, count: int = 1000) -> Outcomes:
    luck = np.random.default_rng(seed)
    confidence = luck.uniform(0.3, 1, count)
    return Outcomes(confidence, luck.random(count) < confidence**2, confidence)


def audit(*seen: bool) -> Any:
    domains = [SimpleNamespace(domain=f"d{n}", seen=one, outcomes=outcomes(n)) for n, one in enumerate(seen)]
    return SimpleNamespace(method="ERM", scores=domains)


def test_lines_are_the_numbers_of_training_domains_together_and_of_the_unseen_one() -> None:
    figure = probability_figure([audit(True, True, False)], "d2")
    left, right = figure.axes
    _, seen, unseen = left.get_lines()
    assert not any(markers.get_clip_on() for markers in left.collections), "those at 1 are whole"
    parts = [(one.confidence, one.correct, one.truth) for one in map(outcomes, (0, 1))]
    both = Outcomes(*map(np.concatenate, zip(*parts, strict=True)))
    for line, one in ((seen, both), (unseen, outcomes(2))):
        confidence, accuracy, _ = reliability(one)
        np.testing.assert_array_equal(line.get_xdata(), confidence)
        np.testing.assert_array_equal(line.get_ydata(), accuracy)
        assert f"{100 * expected_calibration_error(one):.1f}" in left.get_title(loc="left")
    for line, one in zip(right.get_lines(), (both, outcomes(2)), strict=True):
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        assert len(x) <= 2 * POINTS and x[-1] == 1 and y[-1] == pytest.approx(1 - one.correct.mean())
        for share, risk in list(zip(x, y, strict=True))[:: len(x) // 5]:
            answered = np.argsort(-one.confidence)[: round(share * len(one.confidence))]
            assert risk == pytest.approx(1 - one.correct[answered].mean())


def test_a_model_of_all_domains_or_of_none_held_out_has_one_line() -> None:
    for seen in (True, False):
        (left, right) = probability_figure([audit(seen)], "none" if seen else "d0").axes
        assert len(left.get_lines()) == 2 and len(right.get_lines()) == 1
