"""Rows of numbers instead of images: read, standardised by what is trained on, and learned from by every method."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import domainwise as dw
from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.engine.session import Session
from domainwise.sweeps.plan_run import plan_run
from small_datasets import table, table_rows
from small_problems import quick

QUICK: dict[str, Any] = {"hparams": {"batch_size": 8}, "steps": 3, "device": "cpu"}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_keep_their_type_and_have_no_legal_range(dtype: Any) -> None:
    data = table(dtype=dtype)
    assert data.vectors and data.shape == (4,) and data.images.numpy().dtype == dtype
    assert bool((data.low == -torch.inf).all()) and bool((data.high == torch.inf).all())
    assert data.low.dtype == torch.float32


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.full((9, 2), np.nan), "row 0 holds a number that is not finite"),
        (np.vstack([np.zeros((8, 2)), [[0.0, np.inf]]]), "row 8 holds a number that is not finite"),
        (np.zeros((9, 2), np.int64), "not int64 of shape"),
        (np.zeros((9, 3, 8, 8)), "not float64 of shape"),
    ],
)
def test_what_is_no_vector_is_refused(bad: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dw.Environments.from_arrays({"a": (bad, np.zeros(9, int))})


def test_mean_and_std_of_vectors_are_not_the_users_to_give() -> None:
    with pytest.raises(UserError, match="leave out mean and std"):
        dw.Environments.from_arrays({"a": table_rows()}, mean=[0.0] * 4)


def test_standardised_rows_have_mean_zero_and_deviation_one_and_a_constant_column_stays() -> None:
    x, y = table_rows(n=100)
    x[:, 0] *= 1e6
    x[:, 1] = 1e8 + 0.1  # constant, but not zero
    data = dw.Environments.from_arrays({"a": (x, y)})
    chosen = torch.arange(10, 90)
    seen = data.standardised(chosen).normalise(data.images[chosen], torch.float64).numpy()
    reference = (x[10:90] - x[10:90].mean(0)) / np.where(np.arange(4) == 1, 1, x[10:90].std(0))
    np.testing.assert_allclose(seen, reference, atol=1e-6)
    assert abs(seen[:, 1]).max() < 1e-6


def test_numbers_too_large_to_square_are_refused() -> None:
    x, y = table_rows()
    x[0, 2] = 1e300
    with pytest.raises(UserError, match="column 2 are too large to be standardised"):
        dw.fit(dw.Environments.from_arrays({"a": (x, y)}), "ERM", held_out=0, **QUICK)


def test_large_offsets_survive_because_standardisation_is_in_the_datas_own_precision() -> None:
    x, y = table_rows()
    data = dw.Environments.from_arrays({"a": (x + 1e9, y)})
    seen = data.standardised(torch.arange(50)).normalise(data.images).numpy()
    np.testing.assert_allclose(seen, (x - x.mean(0)) / x.std(0), atol=1e-5)


def test_the_unseen_domain_and_the_held_out_rows_never_touch_what_the_network_sees(tmp_path: Path) -> None:
    data = table()
    run = plan_run(Dataset.from_environments(data), "DAT", ["c"], hparams={"batch_size": 8}, steps=3)
    poisoned = data.images.clone()
    poisoned[data.rows("c")] = 1e30
    for domain in ("a", "b"):
        poisoned[data.split(domain, run.trial)["out"]] = -1e30
    sessions = [
        Session(run, environments, torch.device("cpu")) for environments in (data, replace(data, images=poisoned))
    ]
    for session in sessions:
        for _ in range(3):
            session.step()
    clean, other = (session.algorithm.state_dict() for session in sessions)
    assert all(torch.equal(clean[name], other[name]) for name in clean)


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"ARM"}))
def test_every_method_but_arm_reads_vectors(name: str) -> None:
    model = dw.fit(table(), name, **(QUICK | {"hparams": quick(name)}))
    probabilities = model.predict_proba(table_rows(1)[0])
    assert probabilities.shape == (50, 3) and np.allclose(probabilities.sum(1), 1, atol=1e-5)


def test_arm_and_convolutions_refuse_vectors() -> None:
    with pytest.raises(UserError, match="ARM needs images"):
        dw.fit(table(), "ARM", **QUICK)
    for network in ("small-cnn", "mnist-cnn"):
        with pytest.raises(UserError, match=f"'{network}' cannot read vectors of 4 numbers: use mlp"):
            dw.fit(table(), "ERM", network=network, **QUICK)


def test_an_mlp_learns_from_vectors_whatever_their_units() -> None:
    units = np.array([1e-6, 1.0, 1e6, 1e3])
    domains = {
        name: (table_rows(shift)[0] * units, table_rows(shift)[1])
        for name, shift in (("a", 0.0), ("b", 0.5), ("c", -0.5))
    }
    data = dw.Environments.from_arrays(domains)
    model = dw.fit(data, "DAT", steps=60, hparams={"batch_size": 16, "eps": 0.1}, device="cpu")
    assert model.card.network == "mlp"
    assert model.evaluate(data).average > 0.9


def test_wide_tables_are_no_photographs() -> None:
    data = dw.Environments.from_arrays({"a": table_rows(columns=100)})
    assert Dataset.from_environments(data).scale == "small" and Dataset.from_environments(data).image_size == 0
