"""Figures from records alone: what they measure, against independent computations, and what they are drawn from."""

import base64
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image
from scipy import stats

from commands import exit_status
from domainwise.protocol.records import PenaltyRecord, Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Column, Method
from domainwise.protocol.statistics import Estimate, expected
from domainwise.reports.figures import FIGURES, Drawing, TooFew, draw
from domainwise.reports.figures.claims import accuracy_claim, order_claim
from domainwise.reports.figures.end_labels import spread
from domainwise.reports.figures.measure import Fit, Point, adjusted, levels
from domainwise.reports.figures.over_time import _limits, _penalty_claim
from domainwise.reports.learning_curves import LearningCurve
from domainwise.reports.page.write import write_page
from domainwise.reports.style import GROUND, IN_THE_DARK, slots
from domainwise.sweeps.accuracy_table import AccuracyTable
from domainwise.sweeps.collection import collect
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.tables import tables

SCENES = ("scene1", "scene2")


def keep(folder: Path, accuracy: float, unseen: str = "scene1", algorithm: str = "DAT", **facts: Any) -> Run:
    """A run judged twice: chance first, then this accuracy on the unseen domain and better ones where it trained."""
    run = plan_run("BackgroundDigits", algorithm, [unseen], steps=11, evaluate_every=10, **facts)
    kept = RunFolder(folder, run)
    kept.create()
    for step, value in ((0, 0.1), (10, accuracy)):
        values = {(domain, "out"): 0.1 + 0.08 * step for domain in run.train_domains}
        values |= {(unseen, "in"): value, (unseen, "out"): value}
        if run.full_curves:
            values |= {(domain, "in"): own + 0.01 * step for (domain, _), own in values.items() if domain != unseen}
        kept.append([Record(run.id, step, *part, own, 1.0, 1.0) for part, own in values.items()])
        if run.track:
            rows = [(domain, 0.5 + step, 2.0, 1.0, -1.0 + step) for domain in run.train_domains]
            kept.append_penalties([PenaltyRecord(run.id, step, *row) for row in rows])
    kept.append([Status(run.id, 10, "done", "")])
    return run


def fill(folder: Path) -> Path:
    """Something for every figure: two norms, three radii and step sizes, five batch sizes, all images, penalties."""
    for i, size in enumerate((8, 16, 32, 64, 128)):
        for j, unseen in enumerate(SCENES):
            ball = {"eps": (0.1, 1.0, 10.0)[i % 3], "alpha": (0.01, 0.1)[i % 2], "batch_size": size}
            for norm in ("l2", "linf"):
                values = ball | {"norm": norm}
                keep(folder, 0.5 + 0.02 * i + 0.1 * j + 0.01 * (norm == "l2"), unseen, hparams=values, draw=i)
            keep(folder, 0.4 + 0.03 * i, unseen, "ERM", hparams={"batch_size": size}, draw=i)
    keep(folder, 0.5, track=["penalties"], full_curves=True, trial=1)
    return folder


def drawn(name: str, folder: Path, **facts: Any) -> Drawing:
    return draw(name, folder, collect(folder), **facts)


def panel(drawing: Drawing, title: str) -> Axes:
    return next(axis for axis in drawing.figure.axes if axis.get_title(loc="left") == title)


# measures


def test_regression_and_its_band_agree_with_scipy() -> None:
    random = np.random.default_rng(3)
    x = random.uniform(3, 9, 40)
    y = 50 + 1.5 * x + random.normal(0, 4, 40)
    fit = Fit.of(list(x), list(y))
    line = stats.linregress(x, y)
    assert fit is not None
    assert (fit.slope, fit.intercept, fit.slope_error) == pytest.approx(
        (line.slope, line.intercept, line.stderr), 1e-12
    )
    quantile = stats.t(38).isf(0.025)
    assert fit.slope_half_width == pytest.approx(quantile * line.stderr, rel=1e-12)
    for place in (2.0, x.mean(), 7.3, 20.0):
        there = stats.linregress(x - place, y)  # its intercept is the line's value at this place
        at = np.array([place])
        assert float(fit.line(at)[0]) == pytest.approx(there.intercept, rel=1e-12)
        assert float(fit.half_width(at)[0]) == pytest.approx(quantile * there.intercept_stderr, rel=1e-9)


@pytest.mark.parametrize("x", [[], [1.0, 2.0], [3.0, 3.0, 3.0]])
def test_without_three_points_beside_each_other_there_is_no_line(x: list[float]) -> None:
    assert Fit.of(x, x) is None


def test_a_band_covers_the_true_line_as_often_as_it_says() -> None:
    random, x, covered = np.random.default_rng(5), np.linspace(0, 1, 12), 0
    for _ in range(600):
        fit = Fit.of(list(x), list(2 + 3 * x + random.normal(0, 1, 12)))
        assert fit is not None
        at = np.array([0.8])
        covered += abs(float(fit.line(at)[0]) - 4.4) < float(fit.half_width(at)[0])
    assert abs(covered / 600 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 600)


def test_many_values_become_half_decades_and_few_stay() -> None:
    few = [0.1, 1.0, 10.0]
    assert levels(few) == {0.1: 0.1, 1.0: 1.0, 10.0: 10.0}
    many = levels(np.linspace(1.01, 9.9, 30).tolist())
    assert sorted(set(many.values())) == pytest.approx([10**0.25, 10**0.75])
    assert all(
        low <= math.log10(value) < low + 0.5 for value, level in many.items() for low in [math.log10(level) - 0.25]
    )


def test_the_difficulty_of_domains_is_taken_out() -> None:
    run = plan_run("BackgroundDigits", "DAT", "scene1")
    easy, hard = (90.0, 92.0), (50.0, 54.0)
    found = [Point(run, "a", value) for value in easy] + [Point(run, "b", value) for value in hard]
    assert adjusted(found) == pytest.approx([70.5, 72.5, 69.5, 73.5]), "around the mean of all, 71.5"


def test_a_method_has_its_colour_in_whatever_space_it_was_searched() -> None:
    for variant in ("", "paper"):
        erm, irm, dat = (Method(name, variant) for name in ("ERM", "IRM", "DAT"))
        assert slots([dat, erm, irm]) == slots([erm, irm, dat]) == {erm: (0, 0), dat: (1, 0), irm: (2, 0)}
    assert slots([Method("ERM", "paper"), Method("ERM")]) == {Method("ERM"): (0, 0), Method("ERM", "paper"): (1, 0)}


# figures


def test_a_legend_stays_within_its_figure_and_leaves_out_what_all_names_share(tmp_path: Path) -> None:
    for number in range(12):
        keep(tmp_path, 0.5, variant=f"a long name, number {number}")
    figure = drawn("curves", tmp_path).figure
    figure.draw_without_rendering()
    legend = figure.axes[-1].get_legend()
    assert legend is not None and len(legend.get_texts()) == 12
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_few_lines_are_named_at_their_ends_without_what_all_names_share(tmp_path: Path) -> None:
    for algorithm, accuracy in (("ERM", 0.5), ("DAT", 0.51), ("UAT", 0.9)):
        keep(tmp_path, accuracy, algorithm=algorithm, variant="paper")
    axis = panel(drawn("curves", tmp_path), "scene1")
    assert axis.get_legend() is None
    heights = {text.get_text(): text.get_position()[1] for text in axis.texts}
    assert heights.keys() == {"ERM", "DAT", "UAT"} and heights["ERM"] < heights["DAT"] < heights["UAT"]
    assert heights["DAT"] - heights["ERM"] > 0.08, "their lines end closer than text is high"


@pytest.mark.parametrize(
    ("heights", "gap", "expected"),
    [
        ([0.5, 0.5, 0.9], 0.1, [0.5, 0.6, 0.9]),
        ([0.95, 1.0, 0.2], 0.1, [0.9, 1.0, 0.2]),
        ([0.3, 0.1], 0.1, [0.3, 0.1]),
        ([], 0.1, []),
    ],
)
def test_names_are_moved_apart_in_their_order(heights: list[float], gap: float, expected: list[float]) -> None:
    assert spread(heights, gap) == pytest.approx(expected)


ALL = ("scene1", "scene2", "scene3", "scene4")


def scored(folder: Path, levels: dict[str, Sequence[float]], trials: int = 2) -> Path:
    """Runs of these algorithms with these accuracies, one per domain, the same in every trial but for 0.002."""
    for algorithm, values in levels.items():
        for trial in range(trials):
            for unseen, value in zip(ALL, values, strict=True):
                keep(folder, value + 0.002 * trial, unseen, algorithm, trial=trial)
    return folder


EVERYWHERE = ", with higher means on every unseen domain"
ERM, BETTER = (0.6, 0.7, 0.8, 0.5), (0.65, 0.76, 0.86, 0.55)


@pytest.mark.parametrize(
    ("levels", "claim"),
    [
        (
            {"ERM": ERM, "DAT": BETTER},
            f"DAT is clearly ahead of ERM (+5.5 points){EVERYWHERE}",
        ),
        ({"ERM": BETTER, "DAT": ERM}, "DAT is clearly behind ERM (-5.5 points)"),
        ({"ERM": ERM, "DAT": (0.61, 0.69, 0.81, 0.49)}, "DAT is not clearly different from ERM (+0.0 points)"),
        (
            {"ERM": ERM, "DAT": BETTER, "UAT": ERM},
            f"DAT (+5.5 points) is clearly ahead of ERM{EVERYWHERE}; UAT is not",
        ),
        (
            {"ERM": ERM, "DAT": (0.75, 0.85, 0.94, 0.495), "UAT": ERM},
            "DAT (+10.9 points) is clearly ahead of ERM; UAT is not",
        ),
        ({"ERM": ERM, "DAT": ERM, "UAT": ERM}, "neither UAT nor DAT is clearly ahead of ERM"),
        (
            {"ERM": ERM, "DAT": BETTER, "UAT": (0.64, 0.75, 0.85, 0.54)},
            f"DAT (+5.5 points) and UAT (+4.5 points) are clearly ahead of ERM{EVERYWHERE}",
        ),
        (
            {"ERM": ERM, "DAT": BETTER, "UAT": ERM, "IRM": ERM, "CORAL": (0.67, 0.77, 0.87, 0.57)},
            "2 of 4 methods are clearly ahead of ERM, most of all CORAL (+7.0 points)",
        ),
        ({"IRM": ERM, "DAT": BETTER}, "accuracy on unseen domains"),
    ],
)
def test_titles_claim_what_the_records_support(levels: dict[str, Sequence[float]], claim: str) -> None:
    scores = {
        Method(name): {Column(d): {t: 100 * v + 0.2 * t for t in (0, 1)} for d, v in zip(ALL, values, strict=True)}
        for name, values in levels.items()
    }
    assert (
        accuracy_claim(AccuracyTable.of("BackgroundDigits", "training-domain", scores, ["ERM", "UAT", "DAT"])) == claim
    )


def test_title_and_caption_are_in_the_figure(tmp_path: Path) -> None:
    scored(tmp_path, {"ERM": ERM, "DAT": BETTER})
    for name in ("domains", "methods"):
        drawing = drawn(name, tmp_path)
        assert drawing.title == f"BackgroundDigits: DAT is clearly ahead of ERM (+5.5 points){EVERYWHERE}"
        assert drawing.figure.get_suptitle().replace("\n", " ") == drawing.title
        assert "1 draw x 2 trials" in drawing.caption and "selected by training-domain" in drawing.caption.lower()
        assert "standard error" in drawing.caption and "chance 10.0" in drawing.caption
        assert drawing.figure.get_supxlabel().replace("\n", " ") == drawing.caption


def test_domains_show_each_method_on_each_domain_and_on_average(tmp_path: Path) -> None:
    (axis,) = drawn("domains", scored(tmp_path, {"ERM": ERM, "DAT": BETTER})).figure.axes
    assert [label.get_text() for label in axis.get_xticklabels()] == [*ALL, "average"]
    erm, dat = (bar.lines[0].get_ydata() for bar in axis.containers)
    assert erm == pytest.approx([60.1, 70.1, 80.1, 50.1, 65.1]) and dat == pytest.approx([65.1, 76.1, 86.1, 55.1, 70.6])
    assert [text.get_text() for text in axis.texts] == ["ERM 65.1", "DAT 70.6"]


def test_who_memorises_is_claimed_only_if_it_is_clear(tmp_path: Path) -> None:
    for algorithm, gain in (("ERM", 0.0), ("DAT", 0.0)):
        for trial in range(6):
            keep(tmp_path, 0.6 + gain, trial=trial, algorithm=algorithm, full_curves=True)
    assert drawn("memory", tmp_path).title == "BackgroundDigits: memorisation of training images"
    column = Column("scene1")
    values = {
        Method("ERM"): {column: dict.fromkeys(range(6), 9.0)},
        Method("AT"): {column: dict.fromkeys(range(6), 1.0)},
    }
    assert order_claim(values, "most", "least") == "most by ERM (+9.0 points) and least by AT (+1.0)"
    assert order_claim({Method("ERM"): values[Method("ERM")]}, "most", "least") == ""


def test_trends_with_batch_size_are_claimed_by_their_confidence(tmp_path: Path) -> None:
    fill(tmp_path)
    assert drawn("batch-size", tmp_path, algorithms=["ERM"]).title == (
        "BackgroundDigits: larger batches clearly raise accuracy on 2 of 2 unseen domains with ERM"
    )
    flat = tmp_path / "flat"
    for i, size in enumerate((8, 16, 32, 64)):
        keep(flat, 0.5 + 0.02 * (i in (1, 2)), hparams={"batch_size": size}, draw=i)
    assert drawn("batch-size", flat).title == "BackgroundDigits: accuracy has no clear trend with batch size"


def test_penalties_are_compared_with_erm_over_pairs(tmp_path: Path) -> None:
    column = Column("scene1")
    values = {
        Method("ERM"): {column: dict.fromkeys(range(6), 2.0)},
        Method("DAT"): {column: dict.fromkeys(range(6), 3.0)},
    }
    assert _penalty_claim(values) == "IRM's penalty ends clearly higher after DAT than after ERM"
    assert drawn("penalties", fill(tmp_path)).title == "BackgroundDigits: penalties over training"


def test_texts_fit_their_figure(full: Path) -> None:
    for name in ("batch-size", "draws"):
        figure = drawn(name, full).figure
        figure.draw_without_rendering()
        for text in (figure._suptitle, figure._supxlabel):  # type: ignore[attr-defined]
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1, name


def test_the_scatter_shows_every_run_and_the_regression_on_doublings(tmp_path: Path) -> None:
    axis = panel(drawn("batch-size", fill(tmp_path)), "ERM")
    dots, _ = (np.asarray(own.get_offsets()) for own in axis.collections if len(own.get_offsets()) > 1)
    assert sorted(dots.round(9).tolist()) == [[8, 40], [16, 43], [32, 46], [64, 49], [128, 52]]
    assert {line.get_label() for line in axis.lines} == set(SCENES)
    assert (
        drawn("batch-size", tmp_path, algorithms=["ERM"])
        .sentences[0]
        .startswith("ERM on scene1: +3.00 ± 0.00 points for every doubling of the batch (95 % confidence, 5 runs)")
    )


def test_methods_stand_in_order_with_their_averages(tmp_path: Path) -> None:
    for algorithm, level in (("ERM", 0.6), ("DAT", 0.7), ("IRM", 0.5)):
        for trial in range(2):
            for j, unseen in enumerate(("scene1", "scene2", "scene3", "scene4")):
                keep(tmp_path, level + 0.02 * trial + 0.01 * j, unseen, algorithm, trial=trial)
    drawing = drawn("methods", tmp_path)
    axis, differences = drawing.figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["IRM", "ERM", "DAT"]
    assert [bar.lines[0].get_xdata()[0] for bar in axis.containers] == pytest.approx([52.5, 62.5, 72.5])
    assert [bar.lines[0].get_xdata()[0] for bar in differences.containers] == pytest.approx([-10, 10])
    (table,) = tables(collect(tmp_path))
    assert drawing.sentences == [table.sentence("DAT"), table.sentence("IRM")], "the words of the table"
    assert drawing.sentences[0].startswith("DAT is clearly ahead of ERM: +10.0 ± 0.0 points over 8 pairs")
    example = "two methods.*domainwise sweep --dataset BackgroundDigits --algorithms ERM,DAT --hparams 1 --out "
    with pytest.raises(TooFew, match=example):
        drawn("methods", tmp_path, algorithms=["DAT"])


@pytest.mark.filterwarnings("error")
def test_methods_that_tie_are_hollow_dots_at_zero(tmp_path: Path) -> None:
    for algorithm, level in (("ERM", 0.5), ("CORAL", 0.5), ("DAT", 0.5)):
        for unseen in ("scene1", "scene2", "scene3", "scene4"):
            keep(tmp_path, level, unseen, algorithm)
    drawing = drawn("methods", tmp_path)
    assert all("is not clearly different from ERM: +0.0 ± 0.0 points" in sentence for sentence in drawing.sentences)
    averages, differences = drawing.figure.axes
    dots = [bar.lines[0] for bar in differences.containers]
    assert [dot.get_xdata()[0] for dot in dots] == [0, 0] and {dot.get_markerfacecolor() for dot in dots} == {GROUND}
    low, high = averages.get_xlim()
    assert low < 50 < high


def test_methods_without_the_baseline_are_not_compared(tmp_path: Path) -> None:
    for algorithm in ("CORAL", "DAT"):
        for unseen in ("scene1", "scene2", "scene3", "scene4"):
            keep(tmp_path, 0.5, unseen, algorithm)
    drawing = drawn("methods", tmp_path)
    assert len(drawing.figure.axes) == 1
    assert drawing.sentences == ["ERM was not run here: differences to it cannot be tested."]


def test_a_method_far_below_is_a_number_at_the_edge(tmp_path: Path) -> None:
    for algorithm, level in (("ERM", 0.6), ("DAT", 0.7), ("IRM", 0.1)):
        for unseen in ("scene1", "scene2", "scene3", "scene4"):
            keep(tmp_path, level, unseen, algorithm)
    axis, differences = drawn("methods", tmp_path).figure.axes
    assert [text.get_text() for text in axis.texts] == ["◂ 10.0"] and len(axis.containers) == 2
    assert len(differences.containers) == 1, "one far below does not squeeze the differences either"
    left, right = axis.get_xlim()
    assert 50 < left < 60 and 70 < right < 75


def test_the_heatmap_holds_means_over_runs(tmp_path: Path) -> None:
    for eps, alpha, values in ((0.1, 0.01, (0.5, 0.6)), (0.1, 0.1, (0.6, 0.7)), (1.0, 0.1, (0.7, 0.8))):
        for trial in range(2):
            for unseen, value in zip(SCENES, values, strict=True):
                keep(tmp_path, value + 0.02 * trial, unseen, hparams={"eps": eps, "alpha": alpha}, trial=trial)
    drawing = drawn("eps-alpha", tmp_path)
    axis = panel(drawing, "DAT, l2")
    mesh = np.ma.filled(axis.collections[0].get_array(), np.nan)
    assert mesh == pytest.approx(np.array([[56.0, np.nan], [66.0, 76.0]]), nan_ok=True)
    assert [text.get_text() for text in axis.texts] == [
        "56.0",
        "66.0",
        "76.0",
    ] and "mean over 4 runs" in drawing.caption
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0.1", "1"]
    assert drawing.sentences == ["DAT, l2: best around eps 1, alpha 0.1, 76.0 %"]


def test_figures_go_by_the_rule_of_the_dataset(tmp_path: Path) -> None:
    """NICO's training domains are not judged: there is a validation domain."""
    for number, (eps, alpha) in enumerate(((0.1, 0.01), (1.0, 0.01), (0.1, 0.1), (1.0, 0.1))):
        ball = {"eps": eps, "alpha": alpha}
        run = plan_run("NICO", "DAT", ["test"], steps=11, evaluate_every=10, draw=number, hparams=ball)
        kept = RunFolder(tmp_path, run)
        kept.create()
        for step, domain in ((step, domain) for step in (0, 10) for domain in ("validation", "test")):
            kept.append([Record(run.id, step, domain, "in", 0.5 + 0.01 * step + 0.1 * number, 1.0, 1.0)])
        kept.append([Status(run.id, 10, "done", "")])
    assert drawn("eps-alpha", tmp_path).sentences == ["DAT, l2: best around eps 1, alpha 0.1, 90.0 %"]
    with pytest.raises(TooFew):
        drawn("eps-alpha", tmp_path, rule="training-domain")


def test_norms_are_selected_apart(tmp_path: Path) -> None:
    for norm, values in (("l2", (0.6, 0.7)), ("linf", (0.8, 0.5))):
        for trial, value in enumerate(values):
            keep(tmp_path, value, hparams={"norm": norm}, trial=trial)
    sentences = drawn("norms", tmp_path).sentences
    assert sentences == [
        "DAT, l2: 65.0 ± 5.0 % on average (2 trials)",
        "DAT, linf: 65.0 ± 15.0 % on average (2 trials)",
    ]


def test_radii_are_joined_by_their_means(tmp_path: Path) -> None:
    for eps, values in ((0.1, (0.5, 0.6)), (1.0, (0.7, 0.9))):
        for trial, value in enumerate(values):
            keep(tmp_path, value, hparams={"eps": eps}, trial=trial)
    axis = panel(drawn("radius", tmp_path), "DAT, l2")
    assert axis.lines[0].get_xydata() == pytest.approx(np.array([[0.1, 55.0], [1.0, 80.0]]))


def test_penalties_are_means_over_domains_and_runs(tmp_path: Path) -> None:
    axis = panel(drawn("penalties", fill(tmp_path)), "Penalty of IRM")
    assert axis.lines[0].get_xydata() == pytest.approx(np.array([[0, 0.5], [10, 10.5]])) and axis.get_yscale() == "log"
    assert panel(drawn("penalties", tmp_path), "Penalty of LDAT").get_yscale() == "linear", "it may be negative"


def test_curves_mark_what_was_selected(tmp_path: Path) -> None:
    keep(tmp_path, 0.6)
    keep(tmp_path, 0.8, trial=1)
    axis = panel(drawn("curves", tmp_path), "scene1")
    assert axis.lines[0].get_xydata() == pytest.approx(np.array([[0, 10.0], [10, 70.0]]))
    (marks,) = (np.asarray(own.get_offsets()) for own in axis.collections if len(own.get_offsets()) > 1)
    assert marks.tolist() == [[10, 60], [10, 80]]
    runs = [np.asarray(line.get_xydata()).tolist() for line in axis.lines[1:]]
    assert runs == [[[0, 10], [10, pytest.approx(60)]], [[0, 10], [10, pytest.approx(80)]]]
    for trial in range(2, 6):
        keep(tmp_path, 0.7, trial=trial)
    axis = panel(drawn("curves", tmp_path), "scene1")
    assert len(axis.lines) == 1, "of six runs the standard error tells more"


def test_memory_is_what_images_trained_on_have_over_others_of_their_domains(tmp_path: Path) -> None:
    for trial in (0, 1):
        keep(tmp_path, 0.6, trial=trial, full_curves=True)
    keep(tmp_path, 0.7, algorithm="ERM")
    drawing = drawn("memory", tmp_path)
    axis = panel(drawing, "scene1")
    assert axis.lines[0].get_xydata() == pytest.approx(np.array([[0, 0.0], [10, 10.0]]))
    (marks,) = (np.asarray(own.get_offsets()) for own in axis.collections if len(own.get_offsets()) > 1)
    assert marks == pytest.approx(np.array([[10, 10], [10, 10]]))
    assert drawing.sentences == ["DAT, scene1 unseen: +10.0 ± 0.0 points after 10 steps (2 trials)"], (
        "ERM was not judged there"
    )


def test_curves_give_room_to_what_training_reaches(tmp_path: Path) -> None:
    """Not to what a network has after one step, unless that is what was chosen."""
    keep(tmp_path, 0.6)
    low, high = panel(drawn("curves", tmp_path), "scene1").get_ylim()
    assert 10 < low < 60 < high
    keep(tmp_path, 0.05, trial=1)
    low, high = panel(drawn("curves", tmp_path), "scene1").get_ylim()
    assert low < 5 and high > 60


def alone(*means: float) -> tuple[Estimate, ...]:
    """Of one trial each."""
    return tuple(Estimate(mean, None, 1) for mean in means)


def test_a_course_has_room_for_what_was_chosen_and_for_all_that_came_later() -> None:
    at_first = LearningCurve(Method("ERM"), (0, 10), alone(10.0, 60.0), ((0, 10.0, 0),), ((10.0, 60.0),))
    low, high = _limits([at_first])
    assert low < 10 and high > 60
    later = LearningCurve(Method("ERM"), (100, 200), alone(40.0, 80.0), ((200, 80.0, 0),), ((40.0, 80.0), (30.0,)))
    low, high = _limits([later])
    assert low < 30 and high > 80
    once = LearningCurve(Method("ERM"), (0,), alone(10.0), ((0, 10.0, 0),), ((10.0,),))
    assert _limits([once]) == (9.5, 10.5)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_what_a_choice_from_some_draws_is_expected_to_reach(k: int) -> None:
    """Against every set of k, in which the rule's favourite is the first."""
    ranked = [60.0, 72.0, 55.0, 70.0, 41.0]
    assert expected(ranked)[k - 1] == pytest.approx(np.mean([min(s)[1] for s in combinations(enumerate(ranked), k)]))


@pytest.mark.parametrize("n", [1, 7, 60])
def test_expected_choices_are_those_of_exact_counts(n: int) -> None:
    ranked = [float(value) for value in np.random.default_rng(n).integers(0, 1000, n)]
    exact = [
        sum(math.comb(n - 1 - j, k - 1) * Fraction(v) for j, v in enumerate(ranked)) / math.comb(n, k)
        for k in range(1, n + 1)
    ]
    assert expected(ranked) == pytest.approx([float(value) for value in exact], rel=1e-12)


def test_thousands_of_draws_are_not_too_many() -> None:
    """Numbers of sets of 2,000 draws have 600 digits."""
    found = expected([float(n) for n in range(2000, 0, -1)])
    assert found[0] == pytest.approx(1000.5) and found[-1] == 2000 and (np.diff(found) > 0).all()
    assert found[999] == pytest.approx(2001 * 1000 / 1001, rel=1e-12), (
        "the largest of k out of 1 to n: k (n + 1) / (k + 1)"
    )


def test_draws_show_how_much_searching_buys(tmp_path: Path) -> None:
    """The oracle prefers what is best on the unseen domain, training-domain validation the last draw: a tie."""
    for number, accuracy in enumerate((0.5, 0.9, 0.6)):
        for unseen in SCENES:
            keep(tmp_path, accuracy, unseen, draw=number)
            keep(tmp_path, accuracy + 0.02, unseen, draw=number, trial=1)
    keep(tmp_path, 0.3, algorithm="ERM")
    drawing = drawn("draws", tmp_path)
    assert [axis.get_title(loc="left") for axis in drawing.figure.axes] == [
        "by training-domain validation",
        "by oracle validation",
    ]
    by_training, by_oracle = (axis.lines[0].get_xydata() for axis in drawing.figure.axes)
    assert by_oracle == pytest.approx(np.array([[1, 203 / 3], [2, 81.0], [3, 91.0]]))
    assert by_training == pytest.approx(np.array([[1, 203 / 3], [2, (61 + 61 + 91) / 3], [3, 61.0]]))
    assert drawing.sentences[1] == "DAT by oracle validation: 67.7 ± 1.0 % with 1 draw, 91.0 ± 1.0 with 3 (2 trials)"
    assert len(drawing.sentences) == 2, "ERM was not judged on every domain"


# files


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("full"))


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_files_of_every_form_are_the_same_every_time(full: Path, tmp_path: Path, form: str, start: bytes) -> None:
    files = [tmp_path / f"{i}.{form}" for i in range(2)]
    for file in files:
        assert exit_status("figure", "norms", full, "--out", file) == 0
    assert files[0].read_bytes() == files[1].read_bytes() and files[0].read_bytes().startswith(start)


def test_every_figure_is_in_the_page_in_light_and_dark(full: Path, tmp_path: Path) -> None:
    text = write_page(full, tmp_path / "page.html")[0].read_text()
    assert text.count("data:image/svg+xml;base64,") == 2 * (len(FIGURES) - 3), (
        "curves, methods and domains are the page's own"
    )
    assert "points for every doubling" in text
    pictures = [base64.b64decode(own).decode() for own in re.findall(r"svg\+xml;base64,([^\"]+)", text)]
    for dark, light in zip(pictures[::2], pictures[1::2], strict=True):
        assert GROUND in light and IN_THE_DARK[GROUND] in dark and not re.search("|".join(IN_THE_DARK), dark)


def test_a_file_is_dark_on_request(full: Path, tmp_path: Path) -> None:
    for name in ("curves", "norms"):
        assert exit_status("figure", name, full, "--dark", "--out", tmp_path / "dark.png") == 0
        assert exit_status("figure", name, full, "--dark", "--out", tmp_path / "dark.svg") == 0
        with Image.open(tmp_path / "dark.png") as picture:
            assert picture.convert("RGB").getpixel((0, 0)) == (13, 17, 23)
        assert not re.search("|".join(IN_THE_DARK), (tmp_path / "dark.svg").read_text()), name


def test_dots_beyond_number_become_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("domainwise.reports.figures.ablations.RASTER", 2)
    assert exit_status("figure", "batch-size", fill(tmp_path), "--out", tmp_path / "a.svg") == 0
    assert "data:image/png" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize("name", [name for name in FIGURES if name != "curves"])
def test_too_few_runs_are_one_line_with_the_command_that_would_help(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path, 0.5)
    assert exit_status("figure", name, tmp_path) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "BackgroundDigits, this figure needs" in error
    assert f"--out {tmp_path}" in error and not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("radios", "."), "did you mean 'radius'"),
        (("curves", ".", "--dataset", "PACS"), "unknown dataset in"),
        (("curves", ".", "--algorithms", "ERM,DTA"), "did you mean 'DAT'"),
        (("curves", ".", "--selection", "luck"), "selection rule"),
        (("curves", ".", "--out", "a.gif"), ".png, .pdf or .svg"),
        (("curves", "absent"), "not a folder"),
    ],
)
def test_mistakes_are_one_line(
    arguments: Sequence[str], says: str, full: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(full)
    assert exit_status("figure", *arguments) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1
