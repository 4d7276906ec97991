"""The metrics of every evaluation, against scikit-learn and straight-line versions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score, roc_auc_score

from domainwise.engine import metrics
from domainwise.engine.metrics import measure
from domainwise.engine.train import train
from domainwise.protocol.metrics import MEASURED
from short_trainings import few, plan


def straight_calibration_error(p: np.ndarray, y: np.ndarray) -> float:
    total = 0.0
    for b in range(15):
        inside = [i for i in range(len(y)) if b / 15 < p[i].max() <= (b + 1) / 15]
        if inside:
            confidence = sum(p[i].max() for i in inside) / len(inside)
            accuracy = sum(p[i].argmax() == y[i] for i in inside) / len(inside)
            total += len(inside) / len(y) * abs(confidence - accuracy)
    return total


def expected(p: np.ndarray, y: np.ndarray) -> list[float]:
    guesses, present = p.argmax(1), np.unique(y)
    areas = [roc_auc_score(y == c, p[:, c]) for c in present if (y != c).any()]
    return [
        float(np.mean(recall_score(y, guesses, labels=present, average=None))),
        f1_score(y, guesses, labels=present, average="macro", zero_division=0),
        float(np.mean(areas)) if areas else np.nan,
        straight_calibration_error(p, y),
        recall_score(y, guesses, labels=present, average=None).min(),
        np.inf,  # no groups
    ]


@pytest.mark.parametrize("seed", range(40))
def test_equal_scikit_learns(seed: int) -> None:
    luck = np.random.default_rng(seed)
    classes, samples = int(luck.integers(2, 51)), int(luck.choice([1, 2, 7, 60, 400]))
    logits = luck.normal(size=(samples, classes))
    logits = np.round(logits) if seed % 2 else logits  # ties
    labels = luck.integers(0, max(1, classes - seed % 5), samples)  # absent classes
    p = torch.tensor(logits).softmax(1).float()  # by which AUROC orders
    (found,) = measure(p.double(), torch.tensor(labels)).tolist()
    assert found == pytest.approx(expected(p.double().numpy(), labels), abs=1e-9, nan_ok=True)
    single = measure(p, torch.tensor(labels))[0].numpy()
    assert single == pytest.approx(expected(p.numpy(), labels), abs=1e-6, nan_ok=True)


def test_many_splits_at_once_are_as_each_alone() -> None:
    luck = torch.Generator().manual_seed(3)
    sizes = [40, 1, 7, 300]
    p = (3 * torch.randn(sum(sizes), 6, generator=luck)).round().softmax(1)
    y = torch.randint(0, 5, (sum(sizes),), generator=luck)
    alone = torch.cat([measure(*part) for part in zip(p.split(sizes), y.split(sizes), strict=True)])
    torch.testing.assert_close(measure(p, y, sizes), alone, rtol=0, atol=0, equal_nan=True)


def test_logits_that_are_no_numbers_do_not_stop_an_evaluation() -> None:
    assert measure(torch.full((5, 3), torch.nan), torch.arange(5) % 3).shape == (1, 6)


@pytest.mark.filterwarnings("ignore:y_pred contains classes")
def test_balanced_accuracy_is_scikit_learns() -> None:
    p, y = torch.rand(50, 4, generator=torch.Generator().manual_seed(1)), torch.arange(50) % 3
    assert float(measure(p, y)[0, 0]) == pytest.approx(balanced_accuracy_score(y, p.argmax(1)))


def test_a_few_classes_at_a_time_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    p, y = torch.rand(90, 11, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 11
    whole = measure(p, y)
    monkeypatch.setattr(metrics, "AT_ONCE", 200)
    assert torch.equal(measure(p, y), whole)


def test_the_worst_group_is_that_of_a_loop_over_groups_with_enough_samples() -> None:
    luck = np.random.default_rng(4)
    sizes = [300, 25, 40]
    p, y = torch.rand(sum(sizes), 3), torch.from_numpy(luck.integers(0, 3, sum(sizes)))
    groups = torch.from_numpy(np.concatenate([luck.integers(0, 9, 300), np.arange(25), np.repeat([0, 1], [31, 9])]))
    right = (p.argmax(1) == y).numpy()
    found = measure(p, y, sizes, groups)[:, MEASURED.index("worst_group")].tolist()
    wanted, start = [], 0
    for size in sizes:
        of_split, of_right = groups[start : start + size].numpy(), right[start : start + size]
        known = [of_right[of_split == g].mean() for g in set(of_split.tolist()) if (of_split == g).sum() >= 10]
        wanted.append(min(known, default=np.inf))
        start += size
    assert found == pytest.approx(wanted) and wanted[1] == np.inf, "single samples have no accuracy to speak of"
    without = measure(p, y, sizes)
    assert torch.isinf(without[:, -1]).all() and torch.equal(without[:, :-1], measure(p, y, sizes, groups)[:, :-1])


def test_a_training_records_the_worst_group_where_groups_are_known(tmp_path: Path) -> None:
    data = few()
    run = plan("ERM", batch_size=4)
    grouped = replace(data, groups=torch.arange(len(data.labels)) // 12)
    for one, known in ((data, False), (grouped, True)):
        records = train(run, tmp_path / str(known), device="cpu", environments=one).records
        assert any(record.worst_group is not None for record in records) == known
    assert all(record.worst_group is None or record.worst_group <= record.accuracy + 0.5 for record in records)
