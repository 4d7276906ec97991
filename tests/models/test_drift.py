"""Drift: the two-sample test against its definition, its calibration and power, and what a model says of new data."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import domainwise as dw
from commands import Command
from domainwise.core.errors import UserError
from domainwise.data.find import find_dataset
from domainwise.models import fit as fitting
from domainwise.models.drift import LEVEL, drift
from domainwise.models.mmd import compare, median_distance
from small_datasets import picture

KEPT = 80
"""Samples of each domain that the model keeps in these tests."""


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mmd2_by_definition(x: np.ndarray, y: np.ndarray, width: float) -> float:
    def k(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(-((a - b) ** 2).sum() / (2 * width**2)))

    n, m = len(x), len(y)
    xx = sum(k(x[i], x[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    yy = sum(k(y[i], y[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    xy = sum(k(a, b) for a in x for b in y) / (n * m)
    return xx + yy - 2 * xy


@pytest.mark.parametrize(("n", "m"), [(2, 2), (7, 11), (12, 3)])
def test_mmd_is_its_definition(n: int, m: int) -> None:
    draw = np.random.default_rng(n)
    x, y = draw.normal(size=(n, 4)), draw.normal(0.5, 2, size=(m, 4))
    for width in (0.3, 1.7):
        value = compare(torch.tensor(x), torch.tensor(y), width, random(0), 9).mmd2
        assert value == pytest.approx(mmd2_by_definition(x, y, width), abs=1e-12)


def test_the_p_value_counts_divisions_by_definition() -> None:
    """All divisions of 3 + 3 points, by definition; many random ones must agree with that."""
    from itertools import combinations

    draw = np.random.default_rng(4)
    points = draw.normal(size=(6, 2)) + np.array([[1.0, 0]] * 3 + [[0, 0]] * 3)
    values = []
    for chosen in combinations(range(6), 3):
        rest = [i for i in range(6) if i not in chosen]
        values.append(mmd2_by_definition(points[list(chosen)], points[rest], 1.0))
    exact = np.mean([value >= values[0] - 1e-12 for value in values])
    test = compare(torch.tensor(points[:3]), torch.tensor(points[3:]), 1.0, random(0), 20_000)
    assert test.mmd2 == pytest.approx(values[0]) and test.p == pytest.approx(exact, abs=0.02)


def test_the_median_heuristic() -> None:
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0]])
    assert median_distance(x, y) == 2.0  # of 1, 2, 3
    assert median_distance(torch.zeros(5, 2)) == 1.0, "points that are all the same"


def test_p_values_are_uniform_when_nothing_differs() -> None:
    """300 pairs of samples of one distribution: p <= t in a fraction t of them, to three standard errors."""
    draw, ps = random(1), []
    for _ in range(300):
        x, y = torch.randn(15, 5, generator=draw), torch.randn(25, 5, generator=draw)
        ps.append(compare(x, y, median_distance(x, y), draw, 99).p)
    for t in (0.05, 0.2, 0.5, 0.8):
        assert abs(np.mean(np.array(ps) <= t) - t) < 3 * (t * (1 - t) / 300) ** 0.5 + 1e-9


def test_shifts_and_changes_of_spread_are_found() -> None:
    draw = random(2)
    x = torch.randn(100, 5, generator=draw)
    shifted, spread = torch.randn(100, 5, generator=draw) + 0.6, 2 * torch.randn(100, 5, generator=draw)
    for y in (shifted, spread):
        assert compare(x, y, median_distance(x, y), draw, 199).p == 1 / 200


@pytest.fixture(scope="module")
def digits() -> dw.Environments:
    data = find_dataset("BackgroundDigits").load()
    few = {domain: data.rows(domain)[:800] for domain in data.domains}
    arrays = {domain: (data.images[rows], data.labels[rows]) for domain, rows in few.items()}
    return dw.Environments.from_arrays(arrays, classes=data.classes)


@pytest.fixture(scope="module")
def model(digits: dw.Environments) -> dw.Model:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "REFERENCE", KEPT)
        return dw.fit(digits, "ERM", test_domains=["scene1"], steps=30, hparams={"batch_size": 16}, device="cpu")


def held_out(digits: dw.Environments, domain: str) -> torch.Tensor:
    """Held-out images that are not among the model's reference."""
    return digits.images[digits.split(domain, 0)["out"][KEPT:]]


def test_the_model_keeps_held_out_features_of_its_training_domains(digits: dw.Environments, model: dw.Model) -> None:
    assert list(model.reference) == ["scene2", "scene3", "scene4"]
    rows = digits.split("scene3", 0)["out"][:KEPT]
    assert torch.equal(model.reference["scene3"], model.embed(digits.images[rows]))


def test_more_of_a_training_domain_is_no_drift(digits: dw.Environments, model: dw.Model) -> None:
    for domain in model.domains:
        result = model.drift(held_out(digits, domain))
        assert not result.drifted and result.nearest == domain and result.domains[domain].p > LEVEL
        others = [test.p for name, test in result.domains.items() if name != domain]
        assert max(others) <= LEVEL, "and it is told from the others"
        assert result.sentence.startswith(f"No drift: these samples cannot be distinguished from {domain}")


def test_a_mixture_of_the_training_domains_is_no_drift(digits: dw.Environments, model: dw.Model) -> None:
    result = model.drift(torch.cat([held_out(digits, domain)[:50] for domain in model.domains]))
    assert not result.drifted and max(test.p for test in result.domains.values()) <= LEVEL < result.together.p
    assert "the training domains together" in result.sentence


def test_p_values_on_the_models_own_features_are_uniform(model: dw.Model) -> None:
    features, draw = model.reference["scene2"], random(3)
    width, ps = median_distance(features), []
    for _ in range(200):
        order = torch.randperm(KEPT, generator=draw)
        ps.append(compare(features[order[:40]], features[order[40:]], width, draw, 99).p)
    for t in (0.1, 0.5):
        assert abs(np.mean(np.array(ps) <= t) - t) < 3 * (t * (1 - t) / 200) ** 0.5


def test_an_unseen_background_is_drift(digits: dw.Environments, model: dw.Model) -> None:
    result = model.drift(digits.images[digits.rows("scene1")])
    assert result.drifted and result.samples == 512 and result.between is not None
    assert result.domains[result.nearest].mmd2 == min(test.mmd2 for test in result.domains.values())
    assert result.sentence.startswith("Drift: these samples differ from every training domain; the nearest is")
    assert model.drift(digits.images[digits.rows("scene1")]) == result, "the same question, the same answer"


def test_drift_shows_itself_as_a_table(digits: dw.Environments, model: dw.Model) -> None:
    result = keeping(model, {"scene2": 80, "scene3": 1, "scene4": 80}).drift(digits.images[digits.rows("scene1")])
    records = {row["domain"]: row for row in result.to_records()}
    assert list(records) == ["scene2", "scene3", "scene4", "all together"]
    assert records["scene2"] == {"domain": "scene2", "held_out": 80, **vars(result.domains["scene2"])}
    assert records["scene3"] == {"domain": "scene3", "held_out": 1, "mmd2": None, "p": None}
    assert records["all together"]["held_out"] == 160
    assert "512 samples against held-out" in repr(result) and f"{result.domains['scene2'].mmd2:.4f}" in repr(result)
    assert "<td>all together</td>" in result._repr_html_() and result.score_sentence in result._repr_html_()


def test_the_score_has_a_fixed_scale(digits: dw.Environments, model: dw.Model) -> None:
    """MMD^2 to the nearest, also to all together, with a width of the reference alone."""
    images = digits.images[digits.rows("scene1")[:30]]
    near, far = model.drift(held_out(digits, "scene2")), model.drift(images)
    assert 0 <= near.score < 0.02 < far.score <= 2
    width, new = median_distance(*model.reference.values()), model.embed(images).numpy()
    everything = torch.cat(list(model.reference.values()))
    by_hand = [mmd2_by_definition(ref.numpy(), new, width) for ref in (*model.reference.values(), everything)]
    assert far.score == pytest.approx(min(by_hand), abs=1e-6)
    assert model.drift(images, seed=7).score == pytest.approx(far.score, abs=1e-12)
    assert near.score_between == far.score_between and near.score_between is not None and near.score_between > 0
    assert near.between != far.between, "the width of the test depends on the new samples"
    mixture = model.drift(torch.cat([held_out(digits, domain)[:50] for domain in model.domains]))
    assert mixture.score < 0.02, "the distance to all together counts"


def test_what_cannot_be_compared(digits: dw.Environments, model: dw.Model) -> None:
    with pytest.raises(UserError, match="1 samples: drift needs at least 2"):
        model.drift(digits.images[:1])
    arm = dw.Model(model.card, model.algorithm.state_dict(), device="cpu")
    with pytest.raises(UserError, match="keeps no features to compare with"):
        drift(arm, digits.images[:5])
    foreign = {"scene2": torch.zeros(9, 3)}
    with pytest.raises(UserError, match="the model's reference features are not of its network"):
        drift(dw.Model(model.card, model.algorithm.state_dict(), foreign, device="cpu"), digits.images[:5])
    assert "With 5 samples only a large difference shows" in model.drift(digits.images[:5]).sentence


def keeping(model: dw.Model, sizes: dict[str, int]) -> dw.Model:
    """The model with only so many features of each domain to compare with."""
    reference = {domain: model.reference[domain][:size] for domain, size in sizes.items()}
    return dw.Model(model.card, model.algorithm.state_dict(), reference, device="cpu")


@pytest.mark.parametrize(
    ("samples", "sizes", "caveat"),
    [
        (20, {"scene2": 20, "scene3": 80, "scene4": 80}, ""),
        (20, {"scene2": 80, "scene3": 19, "scene4": 30}, "With 19 held-out samples of scene3 only a large"),
        (7, {"scene2": 80, "scene3": 80, "scene4": 4}, "With 7 samples and 4 held-out samples of scene4 only a large"),
        (20, {"scene2": 80, "scene3": 1, "scene4": 80}, "(Not compared with scene3: one held-out sample is too few"),
    ],
)
def test_few_samples_on_either_side_are_told(
    digits: dw.Environments, model: dw.Model, samples: int, sizes: dict[str, int], caveat: str
) -> None:
    for domain in ("scene1", "scene2"):  # with drift and without
        result = keeping(model, sizes).drift(digits.images[digits.rows(domain)[:samples]])
        assert caveat in result.sentence and ("(With" in result.sentence) == caveat.startswith("With")
        assert result.as_json()["references"] == sizes


def test_the_command(model: dw.Model, domainwise: Command) -> None:
    model.save("model")
    Path("new").mkdir()
    for number in range(25):
        picture(number).save(f"new/{number}.png")
    Path("new/zz.png").write_text("no picture")
    told = domainwise("drift", "model", "new", "--json")
    content = json.loads(told.out)
    assert told.status == 1 and "new/zz.png is no readable image" in told.err
    assert content["drifted"] and content["samples"] == 25 and content["found"] == 26
    assert content["domains"].keys() == {"scene2", "scene3", "scene4"}
    Path("new/zz.png").unlink()
    shown = domainwise("drift", "model", "new")
    assert shown.status == 0 and "Drift: these samples differ" in shown.out and "all together" in shown.out
    assert "held out" in shown.out and "240" in shown.out, "how many it was compared with"
    assert "the training domains are up to 0." in shown.out
    assert f"Score {content['score']:.4f} (0: like a training domain" in shown.out
    assert "above" not in content and 0.01 < content["score"] < 2


@pytest.mark.parametrize(("limit", "status"), [("0.001", 1), ("2", 0)])
def test_an_alarm(model: dw.Model, domainwise: Command, limit: str, status: int) -> None:
    model.save("model")
    Path("new").mkdir()
    for number in range(3):
        picture(number).save(f"new/{number}.png")
    told = domainwise("drift", "model", "new", "--fail-above", limit, "--json")
    content = json.loads(told.out)
    assert told.status == status and content["above"] == bool(status) and content["fail_above"] == float(limit)
    assert ("is above 0.001" in told.err) == bool(status)


@pytest.mark.parametrize("limit", ["nan", "inf", "-0.1"])
def test_a_limit_that_is_none(domainwise: Command, limit: str) -> None:
    assert domainwise("drift", "model", "new", "--fail-above", limit).is_one_line_error


def test_training_domains_that_are_alike_have_no_negative_distance(
    digits: dw.Environments, model: dw.Model, domainwise: Command
) -> None:
    """The unbiased estimate of a distance of nothing may be negative, which would mean nothing to its reader."""
    reference = dict.fromkeys(("scene2", "scene3"), model.reference["scene2"])
    alike = dw.Model(model.card, model.algorithm.state_dict(), reference, device="cpu")
    result = alike.drift(held_out(digits, "scene4"))
    assert result.between is not None and result.between < 0
    alike.save("model")
    Path("new").mkdir()
    for number in range(3):
        picture(number).save(f"new/{number}.png")
    shown = domainwise("drift", "model", "new").out
    assert (
        "the training domains are not distinguishable from one another" in " ".join(shown.split())
        and "up to -" not in shown
    )
