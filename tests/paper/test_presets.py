"""Plans of the paper: which runs follow from its tables, and what is said to be smaller or other."""

from typing import Any

import pytest

from domainwise.core.errors import UserError
from domainwise.core.seeds import uniform
from domainwise.data.catalogue import DATASETS
from domainwise.paper.conditions import CLEAN, planned_differences
from domainwise.paper.presets import reproduction
from domainwise.paper.tables import OVER_DATASETS, SINGLE_SOURCE, TABLES, PaperTable, find_table
from domainwise.protocol.options import TrainingOptions
from domainwise.sweeps.plan import planned_runs


@pytest.mark.parametrize("table", [*TABLES, SINGLE_SOURCE], ids=lambda table: table.label)
def test_every_row_of_a_table_is_a_search_of_its_own(table: PaperTable) -> None:
    plans = reproduction(table.label)
    rows = {(c.dataset, c.algorithm, c.setting, c.variant) for c in table.published if c.dataset != OVER_DATASETS}
    assert sorted((p.dataset, *p.algorithms, p.setting, p.variant) for p in plans) == sorted(rows)
    assert {p.draws for p in plans} == ({1} if table.label == "dig" else {20}) and {p.trials for p in plans} == {3}
    told = [words.partition(" (")[0] for words in planned_differences(table, plans)]
    assert told in ([], [CLEAN]), "nothing else is unlike the paper's"


STEPS = """
bench  ColoredMNIST DAT 10001, ColoredMNIST WRM 5001, ColoredMNIST ADA 5001, ColoredMNIST ERM -, ColoredMNIST IRM -
bench  PACS AT 10001, PACS ERM -, NICO UAT 8001, NICO DAT 8001, TerraIncognita DAT 5001
euat   NICO EnsembleUAT 8001
cmnist ColoredMNIST UAT 10001
db     ColoredMNIST DAT -
single ColoredMNIST DAT 5001, NICO ERM 5001
15     PACS DAT 5001
mixed  MixedSame DAT 5001
dig    Digits DAT 10001
"""
CASES = [(line.split()[0], *case.split()[-3:]) for line in STEPS.strip().splitlines() for case in line.split(", ")]


@pytest.mark.parametrize(("table", "dataset", "algorithm", "number"), CASES)
def test_steps(table: str, dataset: str, algorithm: str, number: str) -> None:
    steps = None if number == "-" else int(number)
    (plan,) = reproduction(table, dataset=dataset, algorithms=[algorithm])
    assert plan.options.steps == steps and plan.space == "paper"
    assert plan.setting == find_table(table).published[0].setting
    assert plan.runs()[0].steps == (steps or DATASETS[dataset].steps)


def test_nico_caps_the_loss_of_the_ascent_and_is_not_pretrained() -> None:
    for plan in reproduction("bench", dataset="NICO"):
        adversarial = plan.algorithms[0] in ("AT", "UAT", "DAT")
        assert plan.options.hparams == ({"loss_cap": 2.0} if adversarial else {})
        run = plan.runs()[0]
        assert run.network == "resnet18-scratch" and run.hparams.get("loss_cap") == (2.0 if adversarial else None)
    assert all(not plan.options.hparams for plan in reproduction("bench") if plan.dataset != "NICO")
    (single,) = reproduction("single", dataset="NICO", algorithms=["DAT"])
    assert single.options.hparams == {"loss_cap": 2.0}


def test_networks() -> None:
    assert {p.options.network for p in reproduction("bench", dataset="PACS")} == {"resnet18"}
    assert {p.options.network for p in (*reproduction("bench", dataset="ColoredMNIST"), *reproduction("db"))} == {None}


@pytest.mark.parametrize(
    ("table", "norm", "ranges"),
    [
        ("5", "l2", [((-2, -1), (a, a + 1)) for a in (-4, -3, -2)]
            + [((e, e + 1), (a, a + 1)) for e in (-1, 0) for a in (-3, -2, -1)]),
        ("13", "linf", [((-3, -2), (-4, -3)), ((-2, -1), (-3, -2)), ((-1, 0), (-3, -2))]),
    ],
)  # fmt: skip
def test_ablations_are_searches_of_their_own(
    table: str, norm: str, ranges: list[tuple[tuple[float, float], tuple[float, float]]]
) -> None:
    plans = reproduction(table, draws=3, trials=1)
    assert [(plan.ranges["eps"], plan.ranges["alpha"]) for plan in plans] == ranges
    assert len({plan.variant for plan in plans}) == len(ranges)
    for plan, limits in zip(plans, ranges, strict=True):
        for run in plan.runs():
            assert (run.hparams["norm"], run.hparams["loss_cap"], run.steps) == (norm, 2.0, 8_001)
            for name, (low, high) in zip(("eps", "alpha"), limits, strict=True):
                u = uniform("hparam", run.draw, run.trial, name) if run.draw else 0.5
                assert run.hparams[name] == pytest.approx(10 ** (low + u * (high - low)))
    assert len(planned_runs(plans)) == sum(len(plan.runs()) for plan in plans), "no run belongs to two"


START = "a random start for weights resnet50-0676ba61.pth (0676ba61)"


@pytest.mark.parametrize(
    ("table", "part", "smaller", "words"),
    [
        ("cmnist", {}, {"draws": 4}, ["4 of 20 draws"]),
        ("cmnist", {}, {"trials": 1}, ["1 of 3 trials"]),
        ("cmnist", {}, {"draws": 25, "trials": 5}, ["25 draws for 20", "5 trials for 3"]),
        ("cmnist", {}, {"steps": 501}, ["501 of 5001 steps", "501 of 10001 steps"]),
        ("15a", {}, {"steps": 501}, ["501 of 5001 steps"]),
        ("cmnist", {"algorithms": ["DAT"]}, {"draws": 2, "trials": 2, "steps": 11},
         ["2 of 20 draws", "2 of 3 trials", "11 of 10001 steps"]),
        ("cmnist", {}, {"network": "mlp", "precision": "bf16"}, ["mlp for mnist-cnn", "bf16 for fp32"]),
        ("dig", {}, {"draws": 2}, []),
        ("db", {"dataset": "PACS"}, {"network": "small-cnn", "image_size": 64},
         ["small-cnn for resnet50", START, "64 pixels for 224 pixels", CLEAN]),
        ("db", {"algorithms": ["DAT"]}, {"image_size": 64},
         [f"{words} (VLCS, PACS, OfficeHome, TerraIncognita)" for words in ("64 pixels for 224 pixels", CLEAN)]),
        ("bench", {"dataset": "PACS", "algorithms": ["ERM"]}, {"weights": "mine.pth#0123456789abcdef"},
         ["weights mine.pth (01234567) for weights resnet18-f37072fd.pth (f37072fd)", CLEAN]),
    ],
)  # fmt: skip
def test_it_is_said_what_is_smaller_than_the_papers_or_other(
    table: str, part: dict[str, Any], smaller: dict[str, Any], words: list[str]
) -> None:
    plans = reproduction(table, **smaller, **part)
    assert sorted(planned_differences(find_table(table), plans)) == sorted(words)


def test_what_was_asked_for_is_what_is_run() -> None:
    weights = "mine.pth#0123456789abcdef"
    options = TrainingOptions(steps=2, network="small-cnn", precision="bf16", weights=weights, image_size=64)
    runs = {run.dataset: run for plan in reproduction("bench", options, draws=1, trials=1) for run in plan.runs()}
    facts = {(run.network, run.precision, run.steps, run.weights) for run in runs.values()}
    assert facts == {("small-cnn", "bf16", 2, "")}
    sizes = {name: run.image_size for name, run in runs.items()}
    assert sizes == {"ColoredMNIST": 28, "PACS": 64, "NICO": 64, "TerraIncognita": 64}


def test_fewer_steps_never_means_more_for_another_algorithm() -> None:
    """8,001 steps are fewer than DAT's 10,001 on CMNIST, but more than ERM's 5,001."""
    steps = {plan.algorithms[0]: plan.runs()[0].steps for plan in reproduction("cmnist", steps=8_001)}
    assert steps["DAT"] == 8_001 and steps["ERM"] == 5_001


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"name": "table99"}, "unknown table of the paper 'table99'"),
        ({"name": "cmnist", "dataset": "PACS"}, "unknown dataset of table cmnist 'PACS'"),
        ({"name": "cmnist", "algorithms": ["DAP"]}, "unknown algorithm of table cmnist 'DAP': did you mean 'DAT'"),
        ({"name": "cmnist", "draws": 0}, "draws must be at least 1"),
        ({"name": "cmnist", "trials": 0}, "trials must be at least 1"),
        ({"name": "db", "image_size": 7}, "must be at least 8 pixels"),
    ],
)
def test_impossible_reproductions(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        reproduction(**wrong)
