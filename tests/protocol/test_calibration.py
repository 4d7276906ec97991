"""Temperature against scipy, thresholds on hand-made scores, and coverage on exchangeable samples."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from domainwise.core.errors import UserError
from domainwise.protocol import calibration as c


def made_logits(seed: int, n: int = 400, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are `scale` times too large for labels drawn by their softmax."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(n, 5)) * 1.5
    labels = np.array([random.choice(5, p=row) for row in softmax(logits, axis=1)])
    return scale * logits, labels


def test_temperature_is_the_minimum_that_another_optimiser_finds() -> None:
    logits = {"a": made_logits(0), "b": made_logits(1, n=90)}

    def loss(log_t: np.ndarray) -> float:
        return float(
            np.mean(
                [-log_softmax(x / np.exp(log_t[0]), axis=1)[np.arange(len(y)), y].mean() for x, y in logits.values()]
            )
        )

    expected = np.exp(minimize(loss, [0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x[0])
    assert c.fit_temperature(logits) == pytest.approx(expected, rel=1e-5) and 2 < expected < 4.5
    found, _ = c.calibrate_logits(logits, "unseen")
    assert found.nll[1] < found.nll[0] and found.ece[1] < found.ece[0]


def outcomes(confidence: list[float], correct: list[int]) -> c.Outcomes:
    return c.Outcomes(np.array(confidence), np.array(correct, bool), np.array(confidence))


def test_coverage_counts_every_domain_equally() -> None:
    both = {"a": outcomes([0.9, 0.8], [1, 1]), "b": outcomes([0.7, 0.6, 0.5, 0.4], [1, 1, 0, 0])}
    assert c.coverage_threshold(both, 0.5) == 0.8
    assert c.coverage_threshold(both, 0.75) == 0.6
    assert c.coverage_threshold(both, 0.999) == 0.4


def test_risk_is_bounded_on_the_worst_domain_or_refused() -> None:
    good = outcomes([0.99] * 500 + [0.5] * 100, [1] * 500 + [0] * 100)
    assert 0.5 < c.risk_threshold({"a": good}, 0.05) <= 0.99
    bad = outcomes([0.99] * 500, [1] * 450 + [0] * 50)
    with pytest.raises(UserError, match=r"no threshold keeps the error rate at 0.05 on every"):
        c.risk_threshold({"a": good, "b": bad}, 0.05)


def test_error_bound_of_clopper_and_pearson() -> None:
    assert c.error_bound(0, 100, 0.05) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert c.error_bound(3, 3, 0.05) == 1.0 == c.error_bound(0, 0, 0.05)


def test_the_worst_domain_decides_the_sets() -> None:
    easy, hard = outcomes([0.9] * 9, [1] * 9), outcomes([0.1 * i for i in range(1, 10)], [1] * 9)
    assert c.set_threshold({"easy": easy}, 0.9) == 0.9
    assert c.set_threshold({"easy": easy, "hard": hard}, 0.5) == pytest.approx(0.5)
    assert c.set_threshold({"hard": hard}, 0.95) == 0.0, "nine samples cannot show 95 %"


def test_sets_cover_exchangeable_samples_within_their_bounds() -> None:
    covered = []
    for seed in range(150):
        _, scores = c.calibrate_logits({"a": made_logits(seed, n=199)}, "unseen")
        temperature = c.fit_temperature({"a": made_logits(seed, n=199)})
        new = c.Outcomes.of(*made_logits(10_000 + seed, n=200), temperature)
        covered.append(np.mean(new.truth >= c.set_threshold(scores, 0.9)))
    error = np.std(covered) / np.sqrt(len(covered))
    assert 0.9 - 3 * error <= np.mean(covered) <= 0.9 + 1 / 200 + 3 * error


def test_expected_calibration_error_by_hand() -> None:
    assert c.expected_calibration_error(outcomes([0.95, 0.95, 0.55, 0.55], [1, 1, 1, 0])) == pytest.approx(0.05)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_so_many_samples_are_needed_for_sets(level: float) -> None:
    n = c.samples_needed(level)
    assert c.set_threshold({"a": outcomes([0.7] * n, [1] * n)}, level) == 0.7
    assert n == 1 or c.set_threshold({"a": outcomes([0.7] * (n - 1), [1] * (n - 1))}, level) == 0.0


def test_a_temperature_at_its_limit_and_a_worse_error_are_told() -> None:
    sure = np.tile([[0.0, 1.0]], (30, 1)), np.ones(30, np.int64)
    found, _ = c.calibrate_logits({"lab": sure, "field": sure}, "unseen")
    (told,) = found.warnings
    assert told.startswith("the temperature 0.05 is the lowest that is tried") and told.endswith("lab has 30")
    wrong = sure[0], np.tile([0, 1], 15)
    (told,) = c.calibrate_logits({"lab": (30 * wrong[0], wrong[1])}, "unseen")[0].warnings
    assert "the temperature 50 is the highest" in told
    worse = c.Calibration(1.2, "held-out", {"lab": 7}, (1.0, 0.9), (0.115, 0.254))
    (told,) = worse.warnings
    assert "rose from 11.5 to 25.4 %" in told and told.endswith("calibrate on more samples: lab has 7")
    assert not c.Calibration(1.2, "held-out", {"lab": 7}, (1.0, 0.9), (0.254, 0.115)).warnings
