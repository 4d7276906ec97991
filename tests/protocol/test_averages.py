"""Averages of weights: names, shares of steps, records and descriptions; and SWAD's decision on hand-made losses."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from domainwise.core.errors import UserError
from domainwise.protocol.averages import AveragedSteps, first_step, share_of_step
from domainwise.protocol.loss_valley import LossValley
from domainwise.protocol.options import TrainingOptions
from domainwise.protocol.records import Record
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.saved_weights import describe_average
from domainwise.protocol.selection import Curve, Method
from domainwise.sweeps.plan_run import plan_run
from handmade_records import a_run, rows


def test_a_run_without_average_is_what_it_was() -> None:
    run = a_run()
    assert "average" not in run.describe() and run.training_id == run.id
    averaged = a_run(average="sma")
    assert averaged.id != run.id and averaged.training_id == run.id
    assert averaged == Run.from_description(json.loads(json.dumps(averaged.describe())))
    assert a_run(average="none") == run and "average" not in TrainingOptions(average="none").describe()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average": "mean"}, "unknown average 'mean': choose none, ema, sma or swad"),
        ({"average": "swad", "held_out": 0}, "but held_out is 0: hold some out, or average by sma or ema"),
    ],
)
def test_mistakes_are_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as error:
        plan_run("BackgroundDigits", "ERM", [0], **options)  # type: ignore[arg-type]
    assert message in str(error.value) and "\n" not in str(error.value) and error.value.argument == "average"


def test_sma_is_the_mean_from_step_100_and_ema_forgets_slower_and_slower() -> None:
    assert [share_of_step("sma", step) for step in (0, 99, 100, 101, 103)] == [1, 1, 1, 1 / 2, 1 / 4]
    assert share_of_step("ema", 0) == pytest.approx(0.9) and share_of_step("ema", 90) == pytest.approx(0.09)
    assert share_of_step("ema", 10**5) == pytest.approx(0.001)
    assert [first_step("sma", step) for step in (20, 100, 300)] == [20, 100, 100] and first_step("ema", 300) == 0


def test_rows_of_averaged_weights_are_a_curve_of_their_own(tmp_path: Path) -> None:
    run = a_run(average="sma")
    last = rows(run, {"scene1 in": [0.1, 0.2, 0.3]})
    averaged = [replace(row, average="sma", accuracy=0.7) for row in last]
    assert Curve.of(run, [*last, *averaged]).accuracy["scene1", "in"].tolist() == [0.1, 0.2, 0.3]
    curve = Curve.of(run, [*last, *averaged], "sma")
    assert np.all(curve.accuracy["scene1", "in"] == 0.7) and str(curve.method) == "ERM + SMA"
    assert str(Method("DAT", "paper", "swad")) == "DAT (paper) + SWAD"
    folder = RunFolder(tmp_path, run)
    folder.create()
    folder.append([*last, *averaged])
    lines = folder.records_file.read_text().splitlines()
    assert "average" not in lines[0] and '"average": "sma"' in lines[-1]
    assert folder.read()[0] == [*last, *averaged]


def test_rows_of_an_average_that_the_run_has_not_are_damage(tmp_path: Path) -> None:
    run = a_run()
    folder = RunFolder(tmp_path, run)
    folder.create()
    folder.append([Record(run.id, 0, "scene1", "in", 0.5, 1.0, 0.0, average="sma")])
    with pytest.raises(UserError, match="averaged weights that its run does not have"):
        folder.read()


def test_averaged_weights_say_what_they_are() -> None:
    sma = AveragedSteps("sma", 100, 250, 250, True)
    assert AveragedSteps.from_metadata(sma.metadata()) == sma
    assert AveragedSteps.from_metadata(sma.metadata() | {"last": "x"}) is None
    assert (
        describe_average(sma) == "weights averaged over steps 100 to 250 (SMA), selected by training-domain validation"
    )
    unselected = replace(sma, selected=False)
    assert describe_average(unselected) == "weights averaged over steps 100 to 250 (SMA), up to the last step"
    early = AveragedSteps("sma", 20, 20, 20, False)
    assert describe_average(early) == "weights of step 20 alone (SMA had no other step to average yet), the last step"
    ema = AveragedSteps("ema", 0, 250, 250, True)
    assert describe_average(ema).startswith("weights exponentially averaged over steps 0 to 250 (EMA), selected")
    swad = AveragedSteps("swad", 40, 210, 300, True)
    assert describe_average(swad) == "weights averaged over steps 40 to 210 (SWAD), found by training-domain validation"


def by_the_paper(losses: list[float]) -> tuple[int | None, int]:
    """Algorithm 1, word by word: (t_s or None, t_e) over validations numbered from 0."""
    start, end, limit = None, len(losses) - 1, float("inf")
    for i in range(len(losses)):
        if start is None:
            if i >= 2 and losses[i - 2] == min(losses[i - 2 : i + 1]):
                start, limit = i - 2, 1.3 * sum(losses[i - 2 : i + 1]) / 3
        elif i >= 5 and limit < min(losses[i - 5 : i + 1]):
            end = i - 6
            break
    return start, end


CURVES = {
    "falls to the end": [5.0, 4.0, 3.0, 2.0, 1.0],
    "too short": [1.0, 2.0],
    "rises at once": [1.0, 1.1, 1.2, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.0],
    "flat": [1.0] * 12,
    "a valley": [5.0, 3.0, 2.0, 2.1, 2.2, 2.1, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 1.0],
    "above the limit for five, then back": [3.0, 2.0, 2.1, 2.2, *[4.0] * 5, 2.0, *[4.0] * 6, 9.0],
    "above the limit when it ends": [3.0, 2.0, 2.1, 2.2, 2.0, 4.0, 4.0],
    "two of the three above the limit": [1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0],
    "equal lowest losses": [4.0, 2.0, 2.0, 2.0, 1.0, 1.0],
    "a lower loss after the start": [3.0, 2.0, 2.1, 2.1, 1.0, 0.5, 0.4],
}

ENDED = ("rises at once", "a valley", "above the limit for five, then back", "two of the three above the limit")


@pytest.mark.parametrize("name", CURVES)
def test_the_valley_is_that_of_the_paper(name: str) -> None:
    losses = CURVES[name]
    valley, (start, end) = LossValley.of(losses), by_the_paper(losses)
    assert valley.start == start
    if valley.ended:
        assert valley.inside == end < len(losses) - 6
    else:
        assert end == len(losses) - 1
    assert valley.ended == (name in ENDED)
    if name == "two of the three above the limit":
        assert valley.inside == 0 and valley.limit == pytest.approx(1.3 * 19 / 3)


def test_random_valleys_are_those_of_the_paper() -> None:
    luck = np.random.default_rng(0)
    ended = 0
    for _ in range(300):
        losses = np.exp(luck.normal(0, 0.4, luck.integers(1, 60)).cumsum() * luck.choice([0.1, 1])).tolist()
        valley, (start, end) = LossValley.of(losses), by_the_paper(losses)
        assert valley.start == start and (valley.inside if valley.ended else len(losses) - 1) == end
        ended += valley.ended
    assert 30 < ended < 270, "both ways are tried"


def test_losses_that_are_not_finite_are_never_a_valley() -> None:
    nan, inf = float("nan"), float("inf")
    assert LossValley.of([nan, inf, nan, nan]).start is None
    assert LossValley.of([2.0, 2.1, 2.2, *[nan] * 6]).ended
