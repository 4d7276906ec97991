"""DFR: the last layer trained anew on balanced held-out samples, against an independent float64 solution."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import domainwise as dw
from commands import Command
from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.engine.assemble import EnsembleAlgorithm, linear_classifier
from domainwise.engine.logistic import sparse_logistic_regression
from domainwise.models.dfr import SUBSETS, Samples, choose_strength, dfr, fit_layer
from domainwise.models.folder import load_model
from domainwise.models.model import Model
from small_datasets import make_folder

OPTIONS = {"steps": 51, "hparams": {"batch_size": 16, "lr": 0.01}, "device": "cpu", "held_out": 0.5}


def two_domains(seed: int = 0) -> Environments:
    random = np.random.default_rng(seed)
    domains = {}
    for name in ("north", "south"):
        y = random.integers(0, 2, 200)
        x = random.normal(size=(200, 6)).astype(np.float32)
        x[:, 0] += 2 * y
        domains[name] = (x, y)
    return Environments.from_arrays(domains, name="two domains", classes=("deer", "fox"))


@pytest.fixture(scope="module")
def data() -> Environments:
    return two_domains()


@pytest.fixture(scope="module")
def model(data: Environments) -> Model:
    return dw.fit(data, "ERM", **OPTIONS)


def samples(sizes: tuple[int, ...] = (40, 9, 25, 12), columns: int = 5) -> Samples:
    random = np.random.default_rng(1)
    groups = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
    labels = groups % 2
    x = torch.from_numpy(random.normal(size=(len(groups), columns)) * [1, 2, 0.1, 5, 1] + [0, 1, 0, 0, 3])
    x[:, 0] += 1.5 * labels
    return Samples(x, labels, groups, tuple(("ab"[g // 2], "xy"[g % 2]) for g in range(len(sizes))))


@pytest.mark.parametrize("penalty", [0.3, 0.02, 1e-4])
def test_the_solver_finds_the_minimum_of_every_problem(penalty: float) -> None:
    """By the conditions of a minimum with |W|_1, which no other point meets."""
    random = np.random.default_rng(0)
    x, y = torch.from_numpy(random.normal(size=(3, 80, 7))), torch.from_numpy(random.integers(0, 3, (3, 80)))
    x[..., 0] += y
    w, b = sparse_logistic_regression(x, y, 3, penalty, iterations=20_000, tolerance=1e-12)
    for z, label, weight, bias in zip(x, y, w, b, strict=True):
        error = (z @ weight + bias).softmax(1) - torch.nn.functional.one_hot(label, 3)
        slope, zero = z.T @ error / len(z), weight == 0
        assert bool((slope[zero].abs() <= penalty + 1e-9).all())
        torch.testing.assert_close(slope[~zero], -penalty * weight[~zero].sign(), rtol=0, atol=1e-9)
        torch.testing.assert_close(error.mean(0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-9)


def test_the_layer_is_the_mean_over_balanced_subsets_by_scikit_learn() -> None:
    """The subsets are drawn here as there; everything else is scikit-learn's: scaling, loss, penalty."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    from domainwise.core.seeds import permutation

    given, strength, layers = samples(), 0.3, []
    for number in range(SUBSETS):
        rows = []
        for group in range(4):
            members = np.flatnonzero(given.groups.numpy() == group)
            rows.append(members[permutation(len(members), "dfr", 7, number, group).numpy()[:9]])
        chosen = np.concatenate(rows)
        x, y = given.features.numpy()[chosen], given.labels.numpy()[chosen]
        mean, std = x.mean(0), x.std(0)
        # two classes: the multinomial optimum has W = (-v, v), so that |W|_1 = 2 |v|_1 and the logit is 2 v z
        fitted = linear_model.LogisticRegression(
            l1_ratio=1.0, C=strength, solver="saga", tol=1e-10, max_iter=100_000
        ).fit((x - mean) / std, y)
        v = fitted.coef_[0] / std
        layers.append((v, fitted.intercept_[0] - mean @ v))
    weight, bias = fit_layer(given, strength, SUBSETS, seed=7)
    logit, offset = weight[:, 1] - weight[:, 0], bias[1] - bias[0]
    np.testing.assert_allclose(logit.numpy(), np.mean([v for v, _ in layers], 0), rtol=1e-4, atol=1e-5)
    assert float(offset) == pytest.approx(np.mean([b for _, b in layers]), abs=1e-4)


def test_the_strength_is_chosen_on_halves_that_were_not_fitted() -> None:
    given = samples((30, 30, 30, 30))
    strength, reached = choose_strength(given)
    assert reached.shape == (4,) and 0.5 < float(reached.mean()) <= 1
    noise = Samples(torch.randn(120, 200, dtype=torch.float64), given.labels, given.groups, given.names)
    _, chance = choose_strength(noise)
    assert float(chance.mean()) < 0.7, "what was fitted would be right everywhere"
    assert strength == choose_strength(given)[0], "the same again"


def test_a_rare_group_gains_and_the_model_is_one_like_any_other(
    tmp_path: Path,
) -> None:
    """Domains in which a class is rare: ERM neglects it there, the balanced layer does not."""
    random = np.random.default_rng(3)
    domains = {}
    for name, share in (("north", 0.05), ("south", 0.95)):
        y = (random.random(600) < share).astype(int)
        x = random.normal(size=(600, 6)).astype(np.float32)
        x[:, 0] += 1.2 * y
        x[:, 1] += 6 if name == "south" else 0
        domains[name] = (x, y)
    biased = Environments.from_arrays(domains, name="biased", classes=("deer", "fox"))
    erm = dw.fit(biased, "ERM", **OPTIONS)
    made = dfr(erm, biased)
    done = made.card.training["last_layer"]
    assert done["worst_group"][1] > done["worst_group"][0] + 0.2, done
    assert [group["domain"] for group in done["groups"]] == ["north", "north", "south", "south"]
    assert done["per_group"] == min(group["samples"] for group in done["groups"])
    assert "last layer trained anew (DFR) on 600 held-out samples of 4 groups" in made.weights
    assert "accuracy" not in made.card.training and "unseen" not in made.card.training and made.card.calibration is None
    made.save(tmp_path / "m")
    card = (tmp_path / "m" / "README.md").read_text()
    assert "no domain was left out" not in card + made.unseen and "the last layer was trained anew" in card
    one = done["groups"][1]
    assert f"| north | fox | {one['samples']} | {100 * one['before']:.1f} | {100 * one['after']:.1f} |" in card
    again = load_model(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(again.predict_proba(biased.images[:9]), made.predict_proba(biased.images[:9]))
    assert np.allclose(again.features(biased.images[:9]), erm.features(biased.images[:9])), "the features stay"
    assert erm.trained_on is not None and again.trained_on is not None
    assert len(again.trained_on) == len(erm.trained_on) + 600, "it has now seen what was held out"
    again.export(tmp_path / "m.pt2")


def test_unseen_domains_stay_unseen(data: Environments) -> None:
    one = dw.fit(data, "ERM", test_domains=["south"], **OPTIONS)
    done = dfr(one, data).card.training["last_layer"]
    assert {group["domain"] for group in done["groups"]} == {"north"}


def test_a_group_of_one_sample_is_left_out(model: Model) -> None:
    new = two_domains(7)
    labels = new.labels.clone()
    labels[new.rows("south")[1:]] = 0
    labels[new.rows("south")[0]] = 1
    parts = {domain: (new.images[new.rows(domain)], labels[new.rows(domain)]) for domain in new.domains}
    done = dfr(model, Environments.from_arrays(parts, classes=new.classes)).card.training["last_layer"]
    assert done["left_out"] == ["fox in south"] and len(done["groups"]) == 3


def test_what_cannot_be_reweighted_is_refused(data: Environments, model: Model) -> None:
    everything = dw.fit(data, "ERM", **OPTIONS | {"held_out": 0.0})
    with pytest.raises(UserError, match="holds only samples that the model was trained on"):
        dfr(everything, data)
    with pytest.raises(UserError, match="holds no new samples of the domains north, south"):
        new = two_domains(9)
        dfr(model, Environments.from_arrays({"east": (new.images, new.labels)}, classes=new.classes))
    with pytest.raises(UserError, match="no two new samples of class fox"):
        new = two_domains(8)
        dfr(model, Environments.from_arrays({"north": (new.images, new.labels * 0)}, classes=new.classes))
    with pytest.raises(UserError, match="no two new samples of class fox in a domain"):
        labels = torch.zeros_like(new.labels)
        labels[0] = 1
        dfr(model, Environments.from_arrays({"north": (new.images, labels)}, classes=new.classes))
    with pytest.raises(UserError, match="depend on their batch"):
        dfr(dw.fit(data, "MTL", **OPTIONS | {"steps": 3}), data)
    with pytest.raises(UserError, match="DFR needs a model with one linear classifier, which an ensemble"):
        linear_classifier(EnsembleAlgorithm([model.algorithm]), "DFR")
    with pytest.raises(UserError, match="calibrate it by labelled data"):
        dw.calibrate(dfr(model, data), sweep="runs")


def test_the_command(photos: Path, tmp_path: Path, domainwise: Command) -> None:
    quick = ("--hparam", "batch_size=2", "--steps", 2, "--device", "cpu", "--network", "small-cnn", "--image-size", 16)
    make_folder(photos, count=16)
    trained = domainwise("train", "--data", photos, "--held-out", 0.5, *quick, "--out", "model")
    assert trained.status == 0, trained.err
    made = domainwise("dfr", "model", "--data", photos, "--out", "new", "--device", "cpu")
    assert made.status == 0 and "worst group" in made.out and "clinic" in made.out, made.err
    assert re.search(r"new: weights of step \d, selected by .*; last layer trained anew", made.out), made.out
    assert domainwise("predict", "new", photos / "lab", "--device", "cpu").status == 0
    again = domainwise("dfr", "new", "--data", photos, "--out", "newer", "--device", "cpu")
    assert again.is_one_line_error and "holds only samples that the model was trained on" in again.err
