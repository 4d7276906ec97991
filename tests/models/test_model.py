"""fit and the model it gives: what it reads, what it says, how it is judged."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import log_loss

import domainwise as dw
from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.data.fingerprints import fingerprints
from domainwise.data.sources.saved import with_fingerprint
from domainwise.engine.evaluation import evaluate, splits_to_evaluate
from domainwise.engine.train import train
from domainwise.models.calibrate import calibrate
from domainwise.models.evaluation import DomainScore, Evaluation
from domainwise.protocol.averages import AVERAGES
from domainwise.protocol.calibration import Outcomes, expected_calibration_error
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import HELD_OUT
from domainwise.sweeps.plan_run import plan_run
from small_datasets import table
from small_problems import quick

QUICK: dict[str, Any] = {"hparams": {"batch_size": 8}, "steps": 3, "device": "cpu"}
SIZE = 12


def patterns(n: int = 30, channels: int = 3, seed: int = 0) -> dw.Environments:
    """Three classes of pale patterns over a domain's own colour."""
    random = np.random.default_rng(seed)
    marks = random.integers(0, 2, (3, 1, SIZE, SIZE)) * 120
    domains = {}
    for name in ("field", "lab", "street"):
        y = np.arange(n) % 3
        colour = random.integers(0, 90, (1, channels, 1, 1))
        domains[name] = ((colour + marks[y] + random.integers(0, 40, (n, channels, SIZE, SIZE))).astype(np.uint8), y)
    return dw.Environments.from_arrays(domains, name="patterns", classes=("cat", "dog", "owl"))


@pytest.fixture(scope="module")
def data() -> dw.Environments:
    return patterns()


@pytest.fixture(scope="module")
def model(data: dw.Environments) -> dw.Model:
    return dw.fit(data, "DAT", steps=40, hparams={"batch_size": 16, "eps": 0.1}, device="cpu")


def test_fit_trains_on_every_domain_unless_told(data: dw.Environments, model: dw.Model) -> None:
    assert model.domains == ("field", "lab", "street")
    kept = dw.fit(data, "ERM", test_domains="lab", **QUICK)
    assert kept.domains == ("field", "street")
    assert set(kept.card.training["accuracy"]["lab"]) == {"in", "out"}
    assert kept.card.domains == {"field": 24, "street": 24}
    assert HELD_OUT == 0.2


def test_predictions_are_class_names_and_probabilities(data: dw.Environments, model: dw.Model) -> None:
    images = data.images[:7].numpy()
    probabilities = model.predict_proba(images)
    assert probabilities.shape == (7, 3) and np.allclose(probabilities.sum(1), 1, atol=1e-6)
    assert list(model.predict(images)) == [("cat", "dog", "owl")[i] for i in probabilities.argmax(1)]
    assert np.array_equal(model.predict_proba(data.images[:7]), probabilities), "tensors are arrays too"


def test_a_model_of_a_few_steps_has_learned(data: dw.Environments, model: dw.Model) -> None:
    assert model.evaluate(data).average > 0.9


def test_pictures_and_files_are_brought_to_the_models_size(model: dw.Model, tmp_path: Path) -> None:
    picture = Image.fromarray(np.arange(48 * 40, dtype=np.uint32).astype(np.uint8).reshape(48, 40))
    file = tmp_path / "näme with space.png"
    picture.save(file)
    small = picture.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    expected = model.predict_proba(np.asarray(small).transpose(2, 0, 1)[None])
    for given in (picture, [picture], file, str(file), [file]):
        assert np.array_equal(model.predict_proba(given), expected)
    assert len(model.predict([picture, file, small])) == 3


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((2, SIZE, SIZE, 3), np.uint8), r"put the channels first: images.transpose\(0, 3, 1, 2\)"),
        (np.zeros((2, 3, SIZE, SIZE), np.float32), r"cannot read float32 of shape \[2, 3, 12, 12\]: give uint8"),
        (np.zeros((2, 3, 9, 9), np.uint8), r"give uint8 images of shape \[n, 3, 12, 12\]"),
        (np.zeros((3, SIZE, SIZE), np.uint8), "cannot read uint8"),
        (object(), "not object"),
        ("absent.png", "absent.png is no readable image"),
    ],
)
def test_what_the_model_cannot_read_is_refused(model: dw.Model, bad: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        model.predict(bad)


def test_a_text_file_is_no_image(model: dw.Model, tmp_path: Path) -> None:
    (tmp_path / "note.png").write_text("not a picture")
    with pytest.raises(UserError, match=r"note\.png is no readable image"):
        model.predict(tmp_path / "note.png")


def test_no_images_no_predictions(model: dw.Model) -> None:
    assert model.predict(np.zeros((0, 3, SIZE, SIZE), np.uint8)).shape == (0,)
    assert model.predict_proba(np.zeros((0, 3, SIZE, SIZE), np.uint8)).shape == (0, 3)


def test_grey_models_read_grey_pictures_and_odd_channels_need_arrays() -> None:
    grey = dw.fit(patterns(channels=1), "ERM", **QUICK)
    assert grey.predict(Image.new("RGB", (50, 50), "red")).shape == (1,)
    odd = dw.fit(patterns(channels=2), "ERM", **QUICK)
    with pytest.raises(UserError, match="images cannot be read as inputs of shape"):
        odd.predict(Image.new("RGB", (50, 50)))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_predicts_as_it_was_judged(name: str, data: dw.Environments, tmp_path: Path) -> None:
    """The accuracies in the record, from the saved model: what a prediction depends on must have been saved."""
    model = dw.fit(data, name, test_domains=["lab"], out=tmp_path, **(QUICK | {"hparams": quick(name)}))
    named = with_fingerprint(data)
    run = plan_run(Dataset.from_environments(named), name, ["lab"], hparams=quick(name), steps=3)
    outcome = train(run, tmp_path / "again", device="cpu", environments=named)
    assert outcome.algorithm is not None
    parts = splits_to_evaluate(run, data)
    judged = evaluate(outcome.algorithm, data, parts, run.train_domains)
    loaded = dw.load_model(tmp_path, device="cpu")
    for (domain, _), rows in parts.items():
        known = domain if domain in model.domains else None
        for mine in (model, loaded):
            guesses = mine.probabilities(data.images[rows], known).argmax(1)
            right = float((guesses == data.labels[rows]).double().mean())
            assert right == pytest.approx(judged[domain, _][0], abs=1e-9)
    assert loaded.batch_dependent == (name in ("ARM", "MTL"))
    assert ("depend on the batch" in loaded.card.training["predictions"]) == loaded.batch_dependent
    assert set(loaded.reference) == (set() if name == "ARM" else {"field", "street"})


def test_groups_matter_only_where_predictions_depend_on_them(data: dw.Environments) -> None:
    arm, erm = dw.fit(data, "ARM", **QUICK), dw.fit(data, "ERM", **QUICK)
    images = data.images[:16]
    assert arm.batch_size == 8

    def gap(model: dw.Model) -> float:
        apart = np.concatenate([model.predict_proba(image) for image in images.split(1)])
        return float(abs(model.predict_proba(images) - apart).max())

    assert gap(arm) > 1e-6 > gap(erm)


def test_mtl_makes_use_of_a_named_domain(data: dw.Environments) -> None:
    model = dw.fit(data, "MTL", hparams={"batch_size": 8, "ema": 0.5}, steps=3, device="cpu")
    images = data.images[:8]
    assert abs(model.predict_proba(images) - model.predict_proba(images, domain="lab")).max() > 1e-7
    with pytest.raises(UserError, match="'moon' was not trained on"):
        model.predict(images, domain="moon")


def forgetful(model: dw.Model) -> dw.Model:
    """The model without fingerprints, as earlier versions saved it."""
    return dw.Model(model.card, model.algorithm.state_dict(), model.reference, device="cpu")


def test_evaluation_counts_by_domain_and_class(data: dw.Environments, model: dw.Model) -> None:
    result = forgetful(model).evaluate(data)
    for domain in data.domains:
        rows = data.rows(domain)
        guesses = model.predict(data.images[rows])
        truths = np.array(data.classes)[data.labels[rows].numpy()]
        assert result.accuracy[domain] == pytest.approx(np.mean(guesses == truths))
        for name in data.classes:
            assert result.domains[domain].classes[name] == pytest.approx(np.mean(guesses[truths == name] == name))
        assert result.domains[domain].samples == 30
    domain, name, value = result.worst_class
    assert value == min(min(score.classes.values()) for score in result.domains.values())
    assert result.domains[domain].classes[name] == value
    assert result.accuracy[result.worst_domain] == min(result.accuracy.values())
    assert result.as_json()["domains"]["lab"]["accuracy"] == result.accuracy["lab"]
    assert f"worst class {name} in {domain} ({100 * value:.1f} %)" in str(result)


def test_samples_seen_in_training_are_known_by_content(data: dw.Environments, model: dw.Model, tmp_path: Path) -> None:
    """Whatever their domain is called; the accuracy of a training domain is that of its held-out samples."""
    split = data.split(model.domains[0], 0)
    loaded = dw.load_model(model.save(tmp_path / "model"), device="cpu")

    def part(rows: torch.Tensor, shown: dw.Model = loaded) -> DomainScore:
        renamed = {"new": (data.images[rows], data.labels[rows])}
        (score,) = shown.evaluate(dw.Environments.from_arrays(renamed, classes=data.classes)).domains.values()
        return score

    def right(rows: torch.Tensor) -> float:
        truths = np.array(data.classes)[data.labels[rows].numpy()]
        return float(np.mean(model.predict(data.images[rows]) == truths))

    mixed = part(torch.cat([split["in"], split["out"]]))
    assert (mixed.samples, mixed.seen_samples) == (len(split["out"]), len(split["in"])) and mixed.trained_on
    assert (mixed.accuracy, mixed.seen_accuracy) == pytest.approx((right(split["out"]), right(split["in"])))
    held_out = part(split["out"])
    assert (held_out.seen_samples, held_out.trained_on, held_out.seen_accuracy) == (0, False, None)
    learned = part(split["in"])
    assert learned.only_seen and learned.samples == learned.seen_samples == len(split["in"])
    assert learned.accuracy == learned.seen_accuracy == pytest.approx(right(split["in"]))
    by_name = part(split["in"], forgetful(model))
    assert (by_name.seen_samples, by_name.trained_on, by_name.samples) == (0, False, len(split["in"]))


def test_what_evaluation_says_of_samples_seen_in_training(data: dw.Environments, model: dw.Model) -> None:
    result = model.evaluate(data)
    seen = sum(model.card.domains.values())
    assert result.seen_samples == seen == result.as_json()["seen_in_training"] and result.fingerprints
    assert result.seen_sentence.startswith(f"{seen} of {len(data.images)} samples were seen in training (")
    old = forgetful(model).evaluate(data)
    assert "goes by the domain's name: this model keeps no fingerprints" in old.seen_sentence and not old.fingerprints
    again = pickle.loads(pickle.dumps(model))
    assert again.evaluate(data) == result


def test_averages_of_unseen_domains_and_of_those_trained_on_are_apart() -> None:
    def scored(right: int, trained_on: bool) -> DomainScore:
        return DomainScore({"cat": {"cat": right, "dog": 10 - right}}, trained_on)

    seen, unseen = {"a": scored(10, True), "b": scored(8, True)}, {"new": scored(3, False), "far": scored(6, False)}
    both = Evaluation({**seen, **unseen})
    assert (both.average, both.average_unseen, both.average_trained_on) == pytest.approx((0.675, 0.45, 0.9))
    assert str(both).startswith("Average over unseen domains 45.0 %, over domains trained on 90.0 %; worst domain new")
    assert str(Evaluation(seen)).startswith("Average over domains trained on 90.0 %; worst domain b")
    assert str(Evaluation(unseen)).startswith("Average over unseen domains 45.0 %; worst domain new")
    told = Evaluation(unseen).as_json()
    assert told["average_unseen"] == pytest.approx(0.45) and told["average_trained_on"] is None


def test_a_dataset_is_evaluated_by_its_name(tmp_path: Path) -> None:
    model = dw.fit("BackgroundDigits", "ERM", hparams={"batch_size": 4}, steps=1, device="cpu")
    assert model.evaluate("BackgroundDigits") == model.evaluate(dw.DATASETS["BackgroundDigits"].load())
    with pytest.raises(UserError, match="nowhere is not a folder"):
        model.evaluate(str(tmp_path / "nowhere"))


def test_evaluation_matches_classes_by_name(data: dw.Environments, model: dw.Model) -> None:
    rows = data.rows("lab")
    owls = rows[data.labels[rows] == 2]
    fewer = dw.Environments.from_arrays({"new": (data.images[owls], np.zeros(len(owls), int))}, classes=("owl",))
    model = forgetful(model)
    assert model.evaluate(fewer).accuracy["new"] == model.evaluate(data).domains["lab"].classes["owl"]
    foreign = dw.Environments.from_arrays({"new": (data.images[owls], np.zeros(len(owls), int))}, classes=("emu",))
    with pytest.raises(UserError, match="class 'emu' unknown to the model"):
        model.evaluate(foreign)
    with pytest.raises(UserError, match="inputs of shape"):
        model.evaluate(dw.Environments.from_arrays({"new": (np.zeros((9, 3, 5, 5), np.uint8), np.zeros(9, int))}))


def test_fit_continues_and_keeps_trainings_on_other_data_apart(data: dw.Environments, tmp_path: Path) -> None:
    seen: list[int] = []
    first = dw.fit(data, "ERM", out=tmp_path, progress=seen.append, **QUICK)
    again = dw.fit(data, "ERM", out=tmp_path, progress=seen.append, **QUICK)
    assert seen == [0, 1, 2], "the second call trains nothing"
    assert np.array_equal(first.predict_proba(data.images), again.predict_proba(data.images))
    other = dw.fit(patterns(seed=1), "ERM", out=tmp_path, progress=seen.append, **QUICK)
    assert len(seen) == 6 and not np.array_equal(first.predict_proba(data.images), other.predict_proba(data.images))
    assert len(list(tmp_path.glob("*/run.json"))) == 2
    assert dw.load_model(tmp_path).card == other.card, "the folder is the model of the last training"


def test_a_training_that_diverges_is_no_model(data: dw.Environments, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"diverged at step .* try a smaller lr"):
        dw.fit(data, "ERM", hparams={"batch_size": 8, "lr": 1e30}, steps=5, device="cpu", out=tmp_path)
    assert not (tmp_path / "model.json").exists()


def test_all_can_be_trained_on(data: dw.Environments) -> None:
    model = dw.fit(data, "ERM", held_out=0, **QUICK)
    assert model.card.domains == {"field": 30, "lab": 30, "street": 30} and model.card.training["accuracy"] == {}
    with pytest.raises(UserError, match="keeps no features to compare with"):
        model.drift(data.images)
    assert set(dw.fit(data, "ERM", held_out=0.5, **QUICK).card.domains.values()) == {15}
    with pytest.raises(UserError, match="must be at least 0 and less than 1"):
        dw.fit(data, "ERM", held_out=1.0, **QUICK)


def test_fit_by_name_and_domains_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown domain of patterns-"):
        dw.fit(patterns(), test_domains=["moon"])
    with pytest.raises(UserError, match="unknown algorithm 'DTA'"):
        dw.fit(patterns(), "DTA")
    model = dw.fit("BackgroundDigits", "ERM", test_domains=[0], **QUICK)
    assert model.domains == ("scene2", "scene3", "scene4") and model.classes == tuple("0123456789")


@pytest.mark.parametrize("name", ["DAT", "MTL", "EnsembleUAT"])
def test_models_can_be_pickled_and_copied(name: str, data: dw.Environments) -> None:
    model = dw.fit(data, name, **QUICK)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert np.array_equal(other.predict_proba(data.images[:9]), model.predict_proba(data.images[:9]))
        assert other.card == model.card and list(other.reference) == list(model.reference)


def test_fit_leaves_the_users_random_numbers_alone(data: dw.Environments) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    model = dw.fit(data, "ERM", **QUICK)
    model.predict(data.images[:3])
    assert torch.equal(torch.rand(3), expected)


def test_the_same_seed_gives_the_same_model(data: dw.Environments) -> None:
    a, b, c = (dw.fit(data, "DAT", seed=seed, **QUICK).predict_proba(data.images[:5]) for seed in (1, 1, 2))
    assert np.array_equal(a, b) and not np.array_equal(a, c)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["DAT", "MTL", "EnsembleUAT"])
def test_a_model_of_the_gpu_predicts_alike_on_the_cpu(name: str, data: dw.Environments, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = dw.fit(data, name, steps=5, hparams={"batch_size": 8}, device="cuda", precision="fp32")
    there, here = (
        model.predict_proba(data.images),
        dw.load_model(model.save(tmp_path), device="cpu").predict_proba(data.images),
    )
    assert model.device.type == "cuda" and np.allclose(there, here, atol=1e-3)


# which weights, and what to expect of them


def test_a_card_says_of_which_step_the_weights_are_and_what_to_expect(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 12, "evaluate_every": 4, "hparams": {"batch_size": 8}, "device": "cpu"}
    best = dw.fit("BackgroundDigits", "ERM", test_domains="scene1", out=tmp_path, **settings)
    training = dw.load_model(tmp_path).card.training
    step = training["weights"]["step"]
    assert best.weights == f"weights of step {step}, selected by training-domain validation"
    (run,) = tmp_path.glob("*/run.json")
    rows = [row for row in RunFolder.at(run.parent).read()[0] if row.step == step]
    assert training["accuracy"]["scene2"]["out"] == next(r.accuracy for r in rows if r.domain == "scene2")
    unseen = 100 * next(r.accuracy for r in rows if (r.domain, r.split) == ("scene1", "in"))
    assert training["unseen"]["mean"] == pytest.approx(unseen) and training["unseen"]["pairs"] == 1
    assert training["unseen"]["worst"]["domain"] == "scene1" and "training-domain validation" in best.unseen
    last = dw.fit("BackgroundDigits", "ERM", test_domains="scene1", out=tmp_path, save="last", **settings)
    assert last.weights == "weights of the last step, 11" and last.unseen.endswith("at the last step")
    everywhere = dw.fit("BackgroundDigits", "ERM", held_out=0, **settings)
    assert everywhere.weights == "weights of the last step, 11" and "no domain was left out" in everywhere.unseen


@pytest.mark.parametrize("average", AVERAGES)
def test_a_model_of_averaged_weights_predicts_as_they_were_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: str
) -> None:
    monkeypatch.setattr("domainwise.protocol.averages.SMA_START", 2)
    settings: dict[str, Any] = {"steps": 9, "evaluate_every": 3, "hparams": {"batch_size": 8}, "device": "cpu"}
    made = dw.fit(table(), "ERM", test_domains="c", out=tmp_path, average=average, **settings)
    model = dw.load_model(tmp_path)
    assert model.weights == made.weights and average.upper() in model.weights
    training = model.card.training
    assert training["weights"]["averaged"]["average"] == average
    (folder,) = (RunFolder.at(file.parent) for file in tmp_path.glob("*/run.json"))
    rows = [row for row in folder.read()[0] if row.step == training["weights"]["step"] and row.average == average]
    accuracy = {(row.domain, row.split): row.accuracy for row in rows}
    assert training["accuracy"]["a"]["out"] == accuracy["a", "out"]
    assert training["unseen"]["mean"] == pytest.approx(100 * accuracy["c", "in"])
    whole = model.evaluate(table()).accuracy["c"]
    assert whole == pytest.approx(0.8 * accuracy["c", "in"] + 0.2 * accuracy["c", "out"])
    saved = folder.load_averaged()[1]
    assert all(torch.equal(value, saved[name]) for name, value in model.algorithm.state_dict().items())
    best = dw.fit(table(), "ERM", test_domains="c", out=tmp_path, average=average, save="best", **settings)
    assert best.weights.startswith("weights of step "), "that of the training itself"


def test_evaluation_measures_every_metric_of_the_samples_it_counts(data: dw.Environments) -> None:
    model = dw.fit(data, "ERM", test_domains="street", **QUICK)
    groups = torch.arange(len(data.labels)) // 15
    result = model.evaluate(replace(data, groups=groups))
    for domain, score in result.domains.items():
        rows = data.rows(domain)
        rows = rows[~torch.isin(fingerprints(data.images[rows]), model.trained_on)]
        p, y = model.predict_proba(data.images[rows]).astype(np.float64), data.labels[rows].numpy()
        p /= p.sum(1, keepdims=True)
        assert score.scores is not None and score.samples == len(rows) and score.scores.accuracy == score.accuracy
        assert score.scores.loss == pytest.approx(log_loss(y, p, labels=range(len(data.classes))), abs=1e-5)
        assert score.scores.balanced_accuracy == pytest.approx(np.mean([*score.classes.values()]), abs=1e-5)
        outcomes = Outcomes.of(np.log(p), y)
        assert score.scores.calibration_error == pytest.approx(expected_calibration_error(outcomes), abs=1e-4)
    assert result.domains["street"].scores is not None and result.domains["street"].scores.worst_group is not None
    told = result.as_json()["domains"]["street"]["metrics"]
    assert told["macro_f1"] == result.domains["street"].scores.macro_f1
    assert "calibration error, per cent" in result.metrics_table().headings
    before = result.domains["street"].scores.loss
    model = calibrate(model, data=data)
    after = model.evaluate(data).domains["street"].scores
    assert model.temperature != 1 and after is not None and after.loss != before, "of calibrated probabilities"
    assert "lowest accuracy of a group" not in " ".join(model.evaluate(data).metrics_table().headings)
