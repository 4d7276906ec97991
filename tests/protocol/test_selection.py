"""Model selection, statistics and tables, on numbers made by hand."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from domainwise.cli.output import print_json
from domainwise.protocol.records import Record
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Column, Curve, Method, Selection, select
from domainwise.protocol.statistics import (
    Difference,
    Estimate,
    Scores,
    average,
    estimate,
    paired,
    selected,
    student_t_tails,
)
from domainwise.sweeps.accuracy_table import AccuracyTable
from domainwise.sweeps.plan_run import plan_run
from scores import by_column, scores

TRAINED, UNSEEN = ("scene2", "scene3"), "scene1"
STEPS = (0, 10, 20)


def a_run(draw: int = 0, *, algorithm: str = "ERM", trial: int = 0, test: tuple[str, ...] = (UNSEEN,)) -> Run:
    return plan_run("BackgroundDigits", algorithm, test, train_domains=TRAINED, draw=draw, trial=trial)


def curve(run: Run, steps: tuple[int, ...] = STEPS, **accuracies: list[float]) -> Curve:
    """From scene1_in=[...], scene2_out=[...]; what is not given is 0.5 throughout."""
    parts = [(domain, "out") for domain in run.train_domains]
    parts += [(domain, "in") for domain in run.validation_domains]
    parts += [(domain, split) for domain in run.test_domains for split in ("in", "out")]
    values = {part: accuracies.get("_".join(part), [0.5] * len(steps)) for part in parts}
    return Curve.of(
        run, [Record(run.id, step, *part, values[part][i], 1.0, 0.0) for part in parts for i, step in enumerate(steps)]
    )


# rules


def chosen(curves: list[Curve], rule: str, unseen: str = UNSEEN) -> Selection:
    choice = select(curves, unseen, rule)
    assert choice is not None
    return choice


def test_validation_by_a_domain_of_its_own_looks_at_all_of_it_and_at_nothing_else() -> None:
    """Whatever is held out of the other domains: the validation domain is judged whole, as its `in`."""
    run = replace(a_run(), validation_domains=("scene4",), held_out=0.2)
    first = curve(run, scene1_in=[0.1, 0.2, 0.3], scene2_out=[0.9, 0.1, 0.1], scene4_in=[0.4, 0.8, 0.5])
    second = curve(replace(run, draw=1), scene1_in=[0.4, 0.5, 0.6], scene2_out=[1, 1, 1], scene4_in=[0.7, 0.7, 0.7])
    choice = chosen([first, second], "validation-domain")
    assert (choice.run.draw, choice.step, choice.accuracy) == (0, 10, 0.2)
    assert select([curve(a_run())], UNSEEN, "validation-domain") is None, "there is no such domain"


def test_training_domain_validation_takes_the_best_mean_out_accuracy_of_all_draws_and_steps() -> None:
    curves = [
        curve(a_run(0), scene2_out=[0.1, 0.9, 0.2], scene3_out=[0.1, 0.3, 0.2], scene1_in=[0.11, 0.12, 0.13]),
        curve(a_run(1), scene2_out=[0.1, 0.7, 0.5], scene3_out=[0.1, 0.6, 0.5], scene1_in=[0.21, 0.22, 0.23]),
        curve(a_run(2), scene2_out=[0.1, 0.5, 0.6], scene3_out=[0.1, 0.5, 0.6], scene1_in=[0.31, 0.32, 0.33]),
    ]
    choice = chosen(curves, "training-domain")
    assert (choice.run.draw, choice.step, choice.accuracy) == (1, 10, 0.22)


@pytest.mark.parametrize("peek", ["scene1_in", "scene1_out"])
def test_training_domain_validation_never_looks_at_the_unseen_domain(peek: str) -> None:
    known = {"scene2_out": [0.1, 0.6, 0.5], "scene3_out": [0.1, 0.6, 0.5]}
    curves = [curve(a_run(0), **known, **{peek: [1.0, 0.0, 1.0]}), curve(a_run(1), **{peek: [1.0, 1.0, 1.0]})]
    choice = chosen(curves, "training-domain")
    assert (choice.run.draw, choice.step) == (0, 10)


def test_the_oracle_looks_at_the_last_evaluation_only() -> None:
    curves = [
        curve(a_run(0), scene1_out=[0.9, 0.9, 0.3], scene1_in=[0.11, 0.12, 0.13]),
        curve(a_run(1), scene1_out=[0.2, 0.2, 0.6], scene1_in=[0.21, 0.22, 0.23]),
        curve(a_run(2), scene1_out=[0.8, 0.1, 0.5], scene1_in=[0.31, 0.32, 0.33]),
    ]
    choice = chosen(curves, "oracle")
    assert (choice.run.draw, choice.step, choice.accuracy) == (1, 20, 0.23)


@pytest.mark.parametrize("peek", ["scene1_in", "scene2_out", "scene3_out"])
def test_the_oracle_looks_at_the_unseen_out_split_only(peek: str) -> None:
    curves = [curve(a_run(0), scene1_out=[0.5, 0.5, 0.6]), curve(a_run(1), **{peek: [1.0, 1.0, 1.0]})]
    assert chosen(curves, "oracle").run.draw == 0


@pytest.mark.parametrize("rule", ["training-domain", "oracle"])
@pytest.mark.parametrize("order", [1, -1])
def test_ties_go_to_the_highest_draw_as_in_domainbed(rule: str, order: int) -> None:
    assert chosen([curve(a_run(draw)) for draw in (1, 2, 3)][::order], rule).run.draw == 3


def test_ties_go_to_the_earliest_step() -> None:
    tied = [0.3, 0.8, 0.8]
    curves = [curve(a_run(), scene2_out=tied, scene3_out=tied, scene1_in=[0.1, 0.2, 0.3])]
    choice = chosen(curves, "training-domain")
    assert (choice.step, choice.accuracy) == (10, 0.2)


def test_oracle_reports_the_last_step_even_if_an_earlier_one_ties() -> None:
    assert chosen([curve(a_run(), scene1_out=[0.9, 0.9, 0.9])], "oracle").step == 20


@pytest.mark.parametrize(("unseen", "draw", "accuracy"), [(UNSEEN, 1, 0.91), ("scene4", 2, 0.62)])
def test_of_several_unseen_domains_each_is_selected_for_itself(unseen: str, draw: int, accuracy: float) -> None:
    first, second = (a_run(number, test=(UNSEEN, "scene4")) for number in (1, 2))
    last = {"scene1_out": [0.9, 0.6], "scene4_out": [0.1, 0.6], "scene1_in": [0.91, 0.61], "scene4_in": [0.11, 0.62]}
    curves = [
        curve(run, **{part: [0, 0, values[place]] for part, values in last.items()})
        for place, run in enumerate((first, second))
    ]
    choice = chosen(curves, "oracle", unseen)
    assert (choice.run.draw, choice.accuracy) == (draw, accuracy)


def test_runs_of_different_length_and_runs_without_evaluations() -> None:
    short = curve(a_run(1), steps=(0,), scene2_out=[0.9], scene3_out=[0.9], scene1_in=[0.4])
    empty = Curve.of(a_run(2), [])
    assert empty.steps == ()
    assert chosen([empty, curve(a_run(0)), short], "training-domain").accuracy == 0.4
    assert select([empty], UNSEEN, "training-domain") is None


def test_a_curve_orders_its_steps_and_drops_those_half_judged() -> None:
    run = a_run()
    whole = [
        Record(run.id, step, domain, split, step / 100, 0.0, 0.0)
        for step in (20, 0, 10)
        for domain, split in [("scene2", "out"), ("scene1", "in")]
    ]
    half = Record(run.id, 30, "scene2", "out", 0.9, 0.0, 0.0)
    result = Curve.of(run, [*whole, half])
    assert result.steps == STEPS
    assert result.accuracy["scene2", "out"].tolist() == [0.0, 0.1, 0.2]


def test_selected_keeps_algorithms_domains_and_trials_apart() -> None:
    curves = [
        curve(a_run(draw, algorithm=name, trial=trial), scene2_out=[0, 0, score], scene1_in=[0, 0, score])
        for name, trial, draw, score in [
            ("ERM", 0, 0, 0.6),
            ("ERM", 0, 1, 0.7),
            ("ERM", 1, 0, 0.8),
            ("DAT", 0, 0, 0.9),
        ]
    ]
    found = selected([*curves, Curve.of(a_run(algorithm="DAT", trial=1), [])], "training-domain")
    assert found[Method("ERM")][Column(UNSEEN)] == {0: pytest.approx(70), 1: pytest.approx(80)}
    assert found[Method("DAT")][Column(UNSEEN)] == {0: pytest.approx(90)}, (
        "per cent; a run without evaluations is missing, not 0"
    )


# statistics


def test_an_estimate_is_the_mean_and_its_standard_error() -> None:
    result = estimate([70.0, 72.0, 77.0])
    assert result == Estimate(73.0, pytest.approx(math.sqrt(26 / 2) / math.sqrt(3)), 3)
    assert str(result) == "73.0 ± 2.1"
    assert estimate([5.0]) == Estimate(5.0, None, 1) and str(estimate([5.0])) == "5.0"
    population = np.std([70.0, 72.0, 77.0]) / math.sqrt(3)
    assert result.as_domainbed() == Estimate(73.0, pytest.approx(population), 3), "as in DomainBed's tables"
    assert estimate([5.0]).as_domainbed() == estimate([5.0])


def test_the_average_takes_the_domain_mean_of_each_trial_first() -> None:
    found = by_column({"a": {0: 10.0, 1: 30.0}, "b": {0: 30.0, 1: 10.0}, "c": {0: 20.0, 1: 26.0}})
    assert average(found, list(found)) == Estimate(pytest.approx(21.0), pytest.approx(1.0), 2)


def test_the_average_uses_only_trials_that_have_every_domain() -> None:
    columns = [Column("a"), Column("b")]
    assert average(by_column({"a": {0: 10.0, 1: 99.0}, "b": {0: 20.0}}), columns) == Estimate(15.0, None, 1)
    assert average(by_column({"a": {0: 10.0}, "b": {1: 20.0}}), columns) is None
    assert average(by_column({"a": {0: 10.0}}), columns) is None


def test_differences_are_paired() -> None:
    ours = {"a": {0: 80.0, 1: 60.0, 2: 1.0}, "b": {0: 50.0}, "only here": {0: 1.0}}
    theirs = {"a": {0: 79.0, 1: 57.0}, "b": {0: 52.0, 5: 1.0}, "only there": {0: 1.0}}
    gaps = [1.0, 3.0, -2.0]
    result = paired(by_column(ours), by_column(theirs))
    assert result is not None and (result.n, result.ahead) == (3, 2)
    assert result.mean == pytest.approx(np.mean(gaps))
    assert result.error == pytest.approx(np.std(gaps, ddof=1) / math.sqrt(3)), "sample standard deviation"
    assert str(result) == "+0.7 ± 1.5"


def test_a_run_that_is_judged_on_several_domains_is_one_pair() -> None:
    ours = {"a > b": {0: 5.0, 1: 9.0}, "a > c": {0: 1.0, 1: 1.0}, "b > a": {0: 2.0}}
    theirs = {"a > b": {0: 1.0, 1: 1.0}, "a > c": {0: 3.0, 1: 1.0}, "b > a": {0: 4.0}}
    result = paired(by_column(ours), by_column(theirs))
    gaps = [(4 - 2) / 2, (8 + 0) / 2, -2]
    assert result is not None and (result.n, result.ahead, result.behind) == (3, 2, 1)
    assert result.mean == pytest.approx(np.mean(gaps))


def test_differences_of_nothing_and_of_one_pair() -> None:
    assert paired(by_column({"a": {0: 1.0}}), by_column({"a": {1: 1.0}})) is None
    assert paired(by_column({"a": {0: 3.0}}), by_column({"a": {0: 1.0}})) == Difference(
        2.0, None, ahead=1, behind=0, n=1
    )


@pytest.mark.parametrize(
    ("mean", "error", "n", "comparisons", "verdict"),
    [
        (2.3, 1.0, 12, 1, "clearly ahead of"),  # p = 0.042
        (2.1, 1.0, 12, 1, "not clearly different from"),  # p = 0.060
        (2.3, 1.0, 12, 2, "not clearly different from"),
        (3.1, 1.0, 12, 2, "clearly ahead of"),  # p = 0.010
        (-3.1, 1.0, 12, 2, "clearly behind"),
        (0.0, 0.0, 12, 1, "not clearly different from"),
        (5.0, 0.0, 12, 1, "clearly ahead of"),
        (5.0, 0.0, 12, 200, "not clearly different from"),  # pairs that agree are no surer than a sign test
        (9.0, None, 1, 1, "not clearly different from"),
        (9.0, 0.0, 5, 1, "not clearly different from"),
        (9.0, 0.0, 6, 1, "clearly ahead of"),
    ],
)
def test_what_is_clear(mean: float, error: float | None, n: int, comparisons: int, verdict: str) -> None:
    found = Difference(mean, error, ahead=0, behind=0, n=n, comparisons=comparisons)
    assert found.verdict == verdict and found.clear == verdict.startswith("clearly")
    assert found.as_json()["verdict"] == verdict and found.as_json()["p"] == found.p
    assert found.sentence("DAT", "ERM").startswith(f"DAT is {verdict} ERM: {found} points over {n} pair")


@pytest.mark.parametrize("dof", [1, 2, 5, 11, 19, 100, 1000])
def test_the_tails_of_students_distribution_are_scipys(dof: int) -> None:
    for t in (0.0, 1e-9, 0.3, 1.0, 1.0001, 2.0, 4.5, 40.0):
        assert student_t_tails(t, dof) == pytest.approx(2 * stats.t.sf(t, dof), rel=1e-8, abs=1e-290)
        assert student_t_tails(-t, dof) == student_t_tails(t, dof)


def test_p_is_that_of_a_paired_t_test_and_of_pairs_that_agree_at_least() -> None:
    gaps = [1.0, 3.0, -2.0, 4.0, 2.5, 0.5, 1.5]
    found = paired(by_column({"a": dict(enumerate(gaps))}), by_column({"a": dict.fromkeys(range(len(gaps)), 0.0)}))
    assert found is not None and found.p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    alike = Difference(5.0, 1e-6, ahead=7, behind=0, n=7)
    assert alike.p == stats.binomtest(7, 7).pvalue == 2**-6
    assert "(p = 0.016)" in alike.measured and "(p < 0.0001)" in Difference(5.0, 0.1, 20, 0, 20).measured


# tables

BY_NAME = {
    "ERM": {"b": {0: 80.0, 1: 82.0}, "a": {0: 60.0, 1: 62.0}},
    "DAT": {"b": {0: 79.0, 1: 81.0}, "a": {0: 70.0, 1: 73.0}},
    "IRM": {"a": {0: 50.0}},
}
SCORES = scores(BY_NAME)


def table(selected: Scores = SCORES, order: tuple[str, ...] = ("ERM", "IRM", "DAT", "AT")) -> AccuracyTable:
    return AccuracyTable.of("Toy", "training-domain", selected, order)


def rendered(accuracies: AccuracyTable) -> dict[str, list[str]]:
    """algorithm -> its cells with their markup."""
    columns = [list(column.cells) for column in accuracies.as_table().fitted(200).columns]
    return {cells[0]: [str(cell) for cell in cells[1:]] for cells in zip(*columns, strict=True)}


def test_rows_come_in_the_order_asked_for_and_columns_sorted() -> None:
    assert [str(row.method) for row in table().rows] == ["ERM", "IRM", "DAT"]
    headers = [str(column.header) for column in table().as_table().fitted(200).columns]
    assert headers == ["algorithm", "a", "b", "average", "minus ERM"]


def test_the_best_of_every_column_is_bold() -> None:
    cells = rendered(table())
    assert cells["ERM"] == ["61.0 ± 1.0", "[bold]81.0 ± 1.0[/bold]", "71.0 ± 1.0", ""]
    assert cells["DAT"][:3] == ["[bold]71.5 ± 1.5[/bold]", "80.0 ± 1.0", "[bold]75.8 ± 1.2[/bold]"]
    assert cells["IRM"][:2] == ["50.0", "not run"]


def test_the_difference_to_the_baseline_is_paired() -> None:
    dat = next(row for row in table().rows if row.method == Method("DAT"))
    gaps = [10.0, 11.0, -1.0, -1.0]
    assert dat.difference is not None and dat.difference.mean == pytest.approx(np.mean(gaps))
    assert (dat.difference.ahead, dat.difference.n) == (2, 4)
    assert rendered(table())["DAT"][3] == str(dat.difference)


def test_an_average_over_no_complete_trial_hides_no_other() -> None:
    found = scores({"ERM": {"a": {0: 50.0}, "b": {1: 50.0}}, "DAT": {"a": {0: 60.0}, "b": {0: 60.0}}})
    assert rendered(table(found))["DAT"][2] == "[bold]60.0[/bold]"
    assert "bold" not in rendered(table(found))["ERM"][2]


def test_the_average_of_an_algorithm_that_misses_a_domain_is_no_average() -> None:
    """IRM was not run on b: its mean over a alone would be set beside, and in bold above, means over both."""
    found = scores({"ERM": {"a": {0: 60.0}, "b": {0: 40.0}}, "DAT": {"a": {0: 61.0}}})
    assert "61.0" not in rendered(table(found))["DAT"][2]
    assert "bold" in rendered(table(found))["ERM"][2]


def test_the_sentence_says_what_it_means() -> None:
    by_name = {
        "ERM": {"a": dict.fromkeys(range(8), 80.0)},
        "DAT": {"a": {trial: 86.0 + trial % 2 for trial in range(8)}},
        "UAT": {"a": {trial: 74.0 - trial % 2 for trial in range(8)}},
        "IRM": {"a": {trial: 70.0 + 20 * (trial % 2) for trial in range(8)}},
    }
    found = table(scores(by_name), tuple(by_name))
    assert found.sentence("DAT") == "DAT is clearly ahead of ERM: +6.5 ± 0.2 points over 8 pairs (p = 0.0078)."
    assert found.sentence("UAT").startswith("UAT is clearly behind ERM: -6.5 ± 0.2 points over 8 pairs")
    assert found.sentence("IRM") == "IRM is not clearly different from ERM: +0.0 ± 3.8 points over 8 pairs (p = 1)."
    assert found.test.startswith("Clear: p at most 0.017 (5 % for the 3 comparisons together) by a paired t-test")
    assert "says nothing about others" in found.test and table(scores({"ERM": by_name["ERM"]})).test == ""


def test_more_methods_in_a_table_make_each_comparison_stricter() -> None:
    rng = np.random.default_rng(0)
    erm = {"a": dict.fromkeys(range(12), 80.0)}
    dat = {"a": dict(enumerate(80.0 + rng.normal(0.7, 1.0, 12)))}
    alone = table(scores({"ERM": erm, "DAT": dat}), ()).rows
    p = next(row.difference.p for row in alone if row.difference is not None)
    assert 0.005 < p <= 0.05 and all(row.difference is None or row.difference.clear for row in alone)
    many = table(scores({"ERM": erm, "DAT": dat} | {f"M{i}": dat for i in range(9)}), ()).rows
    assert {row.difference.comparisons for row in many if row.difference is not None} == {10}
    assert not any(row.difference is not None and row.difference.clear for row in many)


@pytest.mark.parametrize(
    "by_name",
    [{}, {"ERM": BY_NAME["ERM"]}, {"DAT": BY_NAME["DAT"]}, {"ERM": {"a": {0: 1.0}}, "DAT": {"a": {1: 1.0}}}],
    ids=["nothing", "only the baseline", "no baseline", "no pair"],
)
def test_the_sentence_when_there_is_nothing_to_compare(by_name: dict[str, dict[str, dict[int, float]]]) -> None:
    assert "nothing to compare" in table(scores(by_name)).sentence("DAT")
    Console(quiet=True).print(table(scores(by_name)))


def test_a_table_says_dataset_and_selection() -> None:
    rich_table = table().as_table().fitted(200)
    assert "Toy" in str(rich_table.title) and "training-domain" in str(rich_table.caption)


ONE_PAIR = scores({"ERM": {"a": {0: 1.0}}, "DAT": {"a": {0: 1.0}}})


@pytest.mark.parametrize("selected", [SCORES, ONE_PAIR], ids=["many", "one pair"])
def test_a_table_is_printed_as_standard_json(selected: Scores, capsys: pytest.CaptureFixture[str]) -> None:
    print_json(table(selected).as_json())
    text = capsys.readouterr().out
    back = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    assert [row["method"] for row in back["rows"]] == [str(row.method) for row in table(selected).rows]
    assert back["rows"][0]["cells"]["a"]["mean"] == table(selected).rows[0].cells[Column("a")].mean
