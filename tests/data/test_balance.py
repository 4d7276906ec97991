"""Balanced batches: images are drawn as often as their weight, class and group say, on every path of a batch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import domainwise as dw
from commands import Command
from domainwise.core.errors import UserError
from domainwise.core.seeds import generator
from domainwise.data.balance import chances
from domainwise.data.batches import Batches, batches_of
from domainwise.data.environments import Environments
from domainwise.data.sources.saved import load_environments, save_environments
from domainwise.engine.session import Session
from domainwise.models.folder import load_model
from domainwise.protocol.runs import Run
from short_trainings import few, plan
from small_tables import rows_of, write

COUNTS = {"a": (60, 30, 10), "b": (5, 0, 45)}
"""Images of each class."""


def imbalanced(**further: Any) -> Environments:
    """Every image is its own row number, so that what is drawn can be told."""
    arrays, first = {}, 0
    for domain, counts in COUNTS.items():
        number = np.arange(first, first + sum(counts), dtype=np.uint8)
        arrays[domain] = (number.reshape(-1, 1, 1, 1), np.repeat(np.arange(3), counts))
        first += len(number)
    return replace(Environments.from_arrays(arrays, classes=("deer", "fox", "hare")), **further)


def rows(data: Environments) -> list[torch.Tensor]:
    return [data.rows(domain) for domain in data.domains]


def drawn(data: Environments, **how: Any) -> list[torch.Tensor]:
    """How often each row of each domain is drawn, as shares."""
    batches = Batches(
        data, rows(data), 40_000, torch.Generator().manual_seed(0), chances=chances(data, rows(data), **how)
    )
    images = (batches.draw()[0] * 255).round().long().flatten(1)
    return [
        of_domain.bincount(minlength=len(data.labels))[own] / of_domain.numel()
        for of_domain, own in zip(images, rows(data), strict=True)
    ]


def by_class(data: Environments, shares: list[torch.Tensor]) -> list[list[float]]:
    return [
        torch.zeros(3).index_add_(0, data.labels[own], part).tolist()
        for own, part in zip(rows(data), shares, strict=True)
    ]


def test_equal_chances_need_no_chances() -> None:
    assert chances(imbalanced(), rows(imbalanced())) is None


def test_classes_of_a_domain_are_drawn_equally_often() -> None:
    data = imbalanced()
    shares = drawn(data, balance="class")
    a, b = by_class(data, shares)
    assert a == pytest.approx([1 / 3] * 3, abs=0.01) and b == pytest.approx([1 / 2, 0, 1 / 2], abs=0.01)
    assert shares[0][:60].max() < 1.5 / 180, "and the images of a class, too"


def test_groups_of_a_domain_are_drawn_equally_often() -> None:
    groups = torch.cat([torch.tensor([7] * 90 + [1] * 10), torch.arange(100, 150)])
    a, b = drawn(imbalanced(groups=groups), balance="group")
    assert float(a[:90].sum()) == pytest.approx(0.5, abs=0.01) and float(a[90:].sum()) == pytest.approx(0.5, abs=0.01)
    assert b.max() < 1.5 / 50


def test_weights_of_images_and_classes_multiply() -> None:
    weights = torch.ones(150, dtype=torch.float64)
    weights[:30], weights[100:105] = 0, 0
    data = imbalanced(weights=weights)
    shares = drawn(data, class_weights=(("hare", 6.0),))
    assert not shares[0][:30].any() and not shares[1][:5].any(), "an image of weight 0 is never drawn"
    assert by_class(data, shares)[0] == pytest.approx([30 / 120, 30 / 120, 60 / 120], abs=0.01)
    balanced = by_class(data, drawn(data, balance="class", class_weights=(("hare", 2.0),)))
    assert balanced[0] == pytest.approx([1 / 4, 1 / 4, 1 / 2], abs=0.01) and balanced[1] == pytest.approx([0, 0, 1])


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_every_row_can_be_meant_exactly(size: int) -> None:
    """The number that stands for a row is that row, also for kernels that multiply it by the size."""
    data = Environments.from_arrays({"a": (np.zeros((size, 1, 1, 1), np.uint8), np.zeros(size, int))}, classes=("one",))
    batches = Batches(data, rows(data), 20_000, torch.Generator().manual_seed(1), chances=[torch.rand(size)])
    u = batches.uniform()
    assert (u >= 0).all() and (u < 1).all()
    numbers = u * size
    assert torch.allclose(numbers - numbers.floor(), torch.full_like(numbers, 0.5), atol=1e-6)


def test_streamed_images_are_drawn_the_same() -> None:
    data = imbalanced()
    resident, streamed = (
        batches_of(one, rows(one), 9, generator("test", device="cpu"), None, chances(one, rows(one), "class"))
        for one in (data, data.to("cpu", streamed=True))
    )
    for _ in range(4):
        (x, y), (u, v) = resident.draw(), streamed.draw()
        assert x.equal(u) and y.equal(v)


@pytest.mark.parametrize(
    ("data", "how", "message"),
    [
        (imbalanced(), {"balance": "group"}, "has no groups to balance"),
        (
            imbalanced(weights=torch.zeros(150, dtype=torch.float64)),
            {},
            "all 100 training images of a domain have weight 0",
        ),
    ],
)
def test_what_cannot_be_balanced_is_refused(data: Environments, how: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        chances(data, rows(data), **how)


def test_balance_is_part_of_a_run_where_it_changes_something() -> None:
    def planned(**options: Any) -> Run:
        return dw.plan("BackgroundDigits", "ERM", "scene1", **options)

    plain, balanced = planned(), planned(balance="class", class_weights={"1": 2})
    assert planned(balance="domain").id == planned(balance="none").id == plain.id and "balance" not in plain.describe()
    assert balanced.id != planned(balance="class").id != plain.id
    assert balanced.recipe == {"balance": "class", "class_weights": (("1", 2.0),)}
    for options, message in (
        ({"balance": "clas"}, "did you mean 'class'"),
        ({"class_weights": {"ten": 2}}, "unknown class 'ten'"),
        ({"class_weights": {"1": 0}}, "must be a number above 0"),
        ({"class_weights": {"1": float("nan")}}, "must be a number above 0"),
    ):
        with pytest.raises(UserError, match=message):
            planned(**options)


@pytest.mark.parametrize("algorithm", ["DAT", "MLDG"])
def test_a_balanced_training_sees_balanced_batches(algorithm: str) -> None:
    run, cpu = replace(plan(algorithm), class_weights=(("3", 1e6),)), torch.device("cpu")
    session = Session(run, few(), cpu)
    session.step()
    _, y = session.batches.draw()
    assert (y == 3).float().mean() > 0.9


def test_weights_of_a_table_reach_saved_data_and_the_training(photos: Path, tmp_path: Path) -> None:
    table_rows = rows_of(photos)
    for number, row in enumerate(table_rows):
        row["times"] = 2.5 if number % 2 else 0
    data = dw.load_dataset(write(photos / "table.csv", table_rows), image_size=8, columns={"weight": "times"})
    assert data.weights is not None and data.weights.tolist() == [0, 2.5] * 18
    save_environments(data, tmp_path / "saved")
    again = load_environments(tmp_path / "saved")
    assert again.weights is not None and again.weights.equal(data.weights)
    for wrong in ("-1", "many", "nan", "inf", ""):
        table_rows[3]["times"] = wrong
        with pytest.raises(UserError, match=r"line 5: times is"):
            dw.load_dataset(write(photos / "table.csv", table_rows), image_size=8, columns={"weight": "times"})


def test_commands_balance(photos: Path, tmp_path: Path, domainwise: Command) -> None:
    few_steps = (
        "--hparam",
        "batch_size=2",
        "--steps",
        2,
        "--device",
        "cpu",
        "--network",
        "small-cnn",
        "--image-size",
        16,
    )
    given = ("--data", photos, "--balance", "class", "--class-weight", "cat=3", *few_steps)
    trained = domainwise("train", *given, "--out", "model")
    assert trained.status == 0, trained.err
    run = load_model(tmp_path / "model").card.training["run"]
    assert run["balance"] == "class" and run["class_weights"] == [["cat", 3.0]]
    for wrong, message in (
        ("cat", "write CLASS=NUMBER"),
        ("cat=x", "write CLASS=NUMBER"),
        ("bird=2", "unknown class 'bird'"),
    ):
        result = domainwise("train", "--data", photos, "--class-weight", wrong, *few_steps)
        assert result.is_one_line_error and message in result.err, result.err
    ungrouped = domainwise("train", "--data", photos, "--balance", "group", *few_steps)
    assert ungrouped.is_one_line_error and "has no groups to balance" in ungrouped.err
