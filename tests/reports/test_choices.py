"""The four rules of selection, searches and statistics, on records made by hand."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.protocol.selection import Column, Curve, Method, rank, searches, select
from domainwise.protocol.statistics import average, estimate, paired, selected
from domainwise.sweeps.collection import Collection, collect, with_companions
from domainwise.sweeps.plan_run import plan_run
from handmade_records import COLOURS, a_run, curve, facts, rows, write_run
from scores import by_column


@pytest.fixture
def roles(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Two domains to train on, one to validate on, two to test on, nothing held out."""
    domains = ("train1", "train2", "validation", "test1", "test2")
    data = Dataset(
        "Roles", "A toy.", domains, ("0", "1"), (1, 8, 8), "small", "mlp", 21, lambda _: pytest.fail("loaded"),
        validation=("validation",), unseen=("test1", "test2"), held_out=0.0,
    )  # fmt: skip
    monkeypatch.setitem(DATASETS._things, "Roles", data)
    return data


# rules

DRAWS = [
    {"scene2 out": [0.1, 0.9, 0.2], "scene3 out": [0.1, 0.3, 0.2], "scene1 out": [0.9, 0.9, 0.3]},
    {"scene2 out": [0.1, 0.7, 0.5], "scene3 out": [0.1, 0.7, 0.5], "scene1 out": [0.1, 0.1, 0.4]},
    {"scene2 out": [0.1, 0.5, 0.6], "scene3 out": [0.1, 0.5, 0.6], "scene1 out": [0.2, 0.2, 0.2]},
]


@pytest.mark.parametrize(("rule", "expected"), [("training-domain", (1, 10, 0.22)), ("oracle", (1, 20, 0.23))])
@pytest.mark.parametrize("order", [1, -1])
def test_choices_by_hand(rule: str, expected: tuple[int, int, float], order: int) -> None:
    """(0.9 + 0.3 + 0.5) / 3 < (0.7 + 0.7 + 0.5) / 3 > (0.6 + 0.6 + 0.5) / 3; 0.4 is the best last value."""
    unseen = [[0.11, 0.12, 0.13], [0.21, 0.22, 0.23], [0.31, 0.32, 0.33]]
    curves = [curve(a_run(draw=draw), DRAWS[draw] | {"scene1 in": unseen[draw]}) for draw in range(3)]
    assert facts(select(curves[::order], "scene1", rule)) == expected
    assert select(curves, "scene1", "validation-domain") is None, "there is no such domain"


@pytest.mark.parametrize(("rule", "step"), [("training-domain", 10), ("oracle", 20)])
@pytest.mark.parametrize("order", [1, -1])
def test_ties_go_to_the_highest_draw_then_to_the_earliest_step(rule: str, step: int, order: int) -> None:
    tied = {f"scene{i} out": [0.1, 0.5, 0.5] for i in range(1, 5)}
    curves = [curve(a_run(draw=draw), tied | {"scene1 in": [0.0, 0.1, 0.2]}) for draw in (1, 3, 2)][::order]
    assert facts(select(curves, "scene1", rule)) == (3, step, step / 100)


@pytest.mark.parametrize("peek", ["scene1 in", "scene1 out"])
def test_training_domain_validation_never_looks_at_the_unseen_domain(peek: str) -> None:
    curves = [curve(a_run(draw=draw), {peek: [0.0, 1.0, 0.9 * (2 - draw)]}) for draw in range(3)]
    choice = select(curves, "scene1", "training-domain")
    assert choice and (choice.run.draw, choice.step) == (2, 0), "all alike"


@pytest.mark.parametrize(
    ("rule", "missing", "judged"),
    [
        ("training-domain", "scene2 out", False),
        ("training-domain", "scene1 out", True),
        ("training-domain", "scene1 in", False),
        ("oracle", "scene2 out", True),
        ("oracle", "scene1 out", True),
        ("oracle", "scene1 in", False),
    ],
)
def test_a_curve_that_lacks_what_a_rule_needs_is_not_judged(rule: str, missing: str, judged: bool) -> None:
    lacking = curve(a_run(), {"scene2 out": [0.9] * 3, "scene1 out": [0.9] * 3, "scene1 in": [0.8] * 3}, missing)
    other = curve(a_run(draw=1))
    assert (select([lacking], "scene1", rule) is not None) == judged
    choice = select([Curve(a_run(draw=2), (), {}), lacking, other], "scene1", rule)
    assert choice and choice.run.draw == (0 if judged else 1)
    assert select([], "scene1", rule) is None


def test_a_whole_validation_domain_selects_over_draws_and_steps(roles: Dataset) -> None:
    """Nothing is held out: `in` is all of a domain, and training domains are not judged at all."""
    curves = []
    for draw, seen in enumerate(([0.1, 0.6, 0.2], [0.1, 0.2, 0.7])):
        run = a_run("test1", "test2", dataset="Roles", draw=draw)
        given = {"validation in": seen, "test1 in": [0.11, 0.12, 0.13], "test2 in": [0.91, 0.22, 0.23 + 0.1 * draw]}
        curves.append(Curve.of(run, [row for row in rows(run, given) if row.split == "in"]))
    assert facts(select(curves, "test1", "validation-domain")) == (1, 20, 0.13)
    assert facts(select(curves, "test2", "validation-domain")) == (1, 20, 0.33)
    assert facts(select(curves, "test2", "oracle")) == (1, 20, 0.33), "all of the unseen domain, where nothing is out"
    assert select(curves, "test1", "training-domain") is None
    assert select(curves, "test1", "leave-one-domain-out") is None


def left_out(draw: int, values: Mapping[str, Sequence[float]], domains: Sequence[str], **more: Any) -> list[Curve]:
    """The first domain's curve, and those that leave out one further domain each, with its `in` accuracies there."""
    unseen, dataset = domains[0], "ColoredMNIST" if domains == COLOURS else "BackgroundDigits"
    curves = [curve(a_run(unseen, dataset=dataset, draw=draw, **more), {f"{unseen} in": [0.01, 0.02, 0.03 + draw]})]
    for further, seen in values.items():
        pair = sorted((unseen, further), key=domains.index)
        curves.append(curve(a_run(*pair, dataset=dataset, draw=draw, **more), {f"{further} in": seen}))
    return curves


SCENES = ("scene1", "scene2", "scene3", "scene4")


@pytest.mark.parametrize(
    ("domains", "draws", "expected"),
    [
        (COLOURS, [[[0.9, 0.2, 0.1], [0.2, 0.7, 0.1]], [[0.4, 0.4, 0.3], [0.1, 0.2, 0.7]]], (0, 0, 0.01)),
        (COLOURS, [[[0.5, 0.2, 0.1], [0.1, 0.6, 0.1]], [[0.4, 0.4, 0.3], [0.1, 0.2, 0.7]]], (1, 20, 1.03)),
        (SCENES, [[[0.9, 0.1, 0.1], [0.0, 0.6, 0.1], [0.0, 0.6, 0.1]], [[0.4] * 3] * 3], (0, 10, 0.02)),
    ],
    ids=["three domains", "three domains, second draw", "four domains"],
)
def test_leave_one_domain_out_by_hand(
    domains: Sequence[str], draws: list[list[list[float]]], expected: tuple[int, int, float]
) -> None:
    curves = []
    for draw, seen in enumerate(draws):
        curves += left_out(draw, dict(zip(domains[1:], seen, strict=True)), domains)
    found = with_companions(curves)
    assert len(found) == len(draws) and all(set(c.companions) == set(domains[1:]) for c in found)
    assert facts(select(found, domains[0], "leave-one-domain-out")) == expected


def test_leave_one_domain_out_needs_every_companion_at_the_same_step() -> None:
    seen = {"scene2": [0.9, 0.1, 0.1], "scene3": [0.9, 0.1, 0.2], "scene4": [0.9, 0.1, 0.3]}
    curves = left_out(0, seen, SCENES)
    assert facts(select(with_companions(curves), "scene1", "leave-one-domain-out")) == (0, 0, 0.01)
    late = Curve.of(curves[1].run, rows(curves[1].run, {"scene2 in": [0.2, 0.3]}, steps=(10, 20)))
    found = with_companions([curves[0], late, *curves[2:]])
    assert facts(select(found, "scene1", "leave-one-domain-out")) == (0, 20, 0.03), "step 0 is not judged there"
    for absent in (1, 2, 3):
        found = with_companions(curves[:absent] + curves[absent + 1 :])
        assert select(found, "scene1", "leave-one-domain-out") is None
    assert select(with_companions(curves), "scene2", "leave-one-domain-out") is None


@pytest.mark.parametrize("other", [{"draw": 1}, {"trial": 1}, {"seed": 1}, {"algorithm": "DAT"}, {"variant": "paper"}])
def test_companions_are_of_the_same_draw_trial_seed_and_method(other: dict[str, Any]) -> None:
    curves = left_out(0, dict.fromkeys(SCENES[1:], [0.5] * 3), SCENES)
    stranger = curve(a_run("scene1", "scene2", **other))
    (found,) = with_companions([curves[0], stranger, *curves[2:]])
    assert set(found.companions) == {"scene3", "scene4"}


# searches


def test_single_source_columns_name_both_domains() -> None:
    curves = []
    for source, value in (("scene1", 0.6), ("scene2", 0.7)):
        for trial in range(2):
            others = [scene for scene in SCENES if scene != source]
            run = a_run(*others, train_domains=[source], setting="single", trial=trial)
            given = {f"{source} out": [0.1, 0.9, 0.2]} | {f"{s} in": [0, value + trial / 10, 0] for s in others}
            curves.append(curve(run, given))
    scores = selected(with_companions(curves), "training-domain")[Method("ERM")]
    assert set(scores) == {Column(b, a) for a in ("scene1", "scene2") for b in SCENES if a != b}
    assert scores[Column("scene3", "scene1")] == pytest.approx({0: 60, 1: 70})
    assert scores[Column("scene1", "scene2")] == pytest.approx({0: 70, 1: 80})
    assert str(Column("scene3", "scene1")) == "scene1 → scene3"


@pytest.mark.parametrize("ended", ["diverged", "failed", ""])
def test_evaluations_before_a_run_diverged_failed_or_was_stopped_count(tmp_path: Path, ended: str) -> None:
    """A rule chooses among evaluations, however their run ended; the oracle takes the last there is."""
    given = {f"{scene} out": [0.8, 0.7] for scene in SCENES} | {"scene1 in": [0.1, 0.2]}
    write_run(tmp_path, a_run(), given, ended, steps=(0, 10))
    write_run(tmp_path, a_run(draw=1))
    ((_, curves),) = collect(tmp_path).experiments().items()
    assert facts(select(curves, "scene1", "training-domain")) == (0, 0, 0.1)
    assert facts(select(curves, "scene1", "oracle")) == (0, 10, 0.2)


@pytest.mark.parametrize("other", [{"seed": 1}, {"train_domains": ["scene2", "scene3"]}], ids=["seed", "domains"])
def test_draws_of_different_searches_are_not_pooled(other: dict[str, Any]) -> None:
    """A rule that chooses among twice as many runs is twice as lucky, and a table would not say so."""
    found = Collection((curve(a_run()), curve(a_run(**other))), {}, ()).experiments()
    assert [len(draws) for curves in found.values() for draws in searches(curves).values()] == [1, 1]


def test_several_unseen_domains_of_a_dataset_with_roles_are_shown(tmp_path: Path, roles: Dataset) -> None:
    run = a_run("test1", "test2", dataset="Roles")
    write_run(tmp_path, run, {"test1 in": [0.1] * 3, "test2 in": [0.2] * 3})
    curves = [c for group in collect(tmp_path).experiments().values() for c in group]
    scores = selected(curves, "validation-domain").get(Method("ERM"), {})
    assert {column.unseen: by_trial[0] for column, by_trial in scores.items()} == pytest.approx(
        {"test1": 10.0, "test2": 20.0}
    )


def test_experiments_keep_apart_what_is_not_alike() -> None:
    runs = [a_run(), a_run(draw=1, trial=1, algorithm="DAT"), a_run("scene2"), a_run(network="mlp")]
    runs += [a_run("+90%", dataset="ColoredMNIST"), plan_run("BackgroundDigits", "ERM", "scene1", steps=7)]
    found = Collection(tuple(curve(run) for run in runs), {}, ()).experiments()
    assert sorted(len(curves) for curves in found.values()) == [1, 1, 1, 3]
    assert list(found) == sorted(found)


# statistics


def test_paired_differences_by_hand() -> None:
    a = {"x": {0: 5.0, 1: 7.0, 2: 1.0}, "y": {0: 3.0}, "only a": {0: 100.0}}
    b = {"x": {0: 4.0, 1: 4.0, 3: 0.0}, "y": {0: 5.0}, "only b": {0: 100.0}}
    found = paired(by_column(a), by_column(b))
    assert found and (found.mean, found.ahead, found.behind, found.n) == (pytest.approx(2 / 3), 2, 1, 3)
    assert found.error == pytest.approx(np.std([1, 3, -2], ddof=1) / math.sqrt(3))
    assert paired(by_column({"x": {0: 1.0}}), by_column({"x": {1: 1.0}})) is None
    tie = paired(by_column({"x": {0: 1.0}}), by_column({"x": {0: 1.0}}))
    assert tie and (tie.mean, tie.error, tie.ahead, tie.behind, tie.n, tie.p) == (0.0, None, 0, 0, 1, 1.0)


def test_averages_by_hand() -> None:
    scores = by_column({"x": {0: 10.0, 1: 20.0, 2: 99.0}, "y": {0: 30.0, 1: 60.0}})
    found = average(scores, [Column("x"), Column("y")])
    assert found and (found.mean, found.error, found.n) == (30.0, pytest.approx(10.0), 2)
    assert average(scores, [*scores, Column("z")]) is None and average(scores, []) is None
    assert estimate([1.0, 1.0, 4.0]).error == pytest.approx(math.sqrt(3) / math.sqrt(3))


@pytest.mark.parametrize("rule", ["training-domain", "oracle"])
def test_ranking_repeats_the_choice_without_what_was_chosen(rule: str) -> None:
    rng = np.random.default_rng(0)
    curves = [
        curve(
            a_run(draw=draw),
            {f"scene{i} {split}": rng.integers(0, 4, 3) / 4 for i in range(1, 5) for split in ("in", "out")},
        )
        for draw in range(12)
    ]
    one_by_one, remaining = [], list(curves)
    while choice := select(remaining, "scene1", rule):
        one_by_one.append(choice)
        remaining = [left for left in remaining if left.run != choice.run]
    assert rank(curves[::-1], "scene1", rule) == rank(curves, "scene1", rule) == one_by_one and len(one_by_one) == 12
