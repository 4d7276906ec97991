"""Audits of models whose shortcuts are known, because they are built in."""

import json
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from commands import command
from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Problem
from domainwise.analysis.audit import WorstPair, audit, audit_selected
from domainwise.analysis.predictions import held_out_images, logits_and_features
from domainwise.analysis.probe import equal_classes, probe_domains
from domainwise.analysis.run_choice import RunFilter
from domainwise.analysis.shortcuts import BackgroundUse, ColourUse, MixedUse
from domainwise.cli.audit import _worst as cell_of_worst
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.data.environments import Environments
from domainwise.data.sources.mnist import SCENES, background, overlay, source_digits
from domainwise.engine.logistic import PENALTY, logistic_regression
from domainwise.engine.restore import TrainedRun
from domainwise.engine.train import train
from domainwise.nets.network import Network
from domainwise.protocol.options import TrainingOptions
from domainwise.reports.pictures import audit_figure
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.plan_run import plan_run
from shown_progress import recorded_progress

Answer = Callable[[Tensor], Tensor]


class Reader(nn.Module):
    """A network that gives the answers of a function of its inputs."""

    def __init__(self, answer: Answer, classes: int) -> None:
        super().__init__()
        self.answer, self.classes = answer, classes
        self.nothing = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(self.answer(x), self.classes) + self.nothing


def reading(data: Environments, unseen: str, answer: Answer) -> TrainedRun:
    """A model on this data that answers like this."""
    run = plan_run(Dataset.from_environments(data), "ERM", [unseen], steps=1)
    sizes = tuple(data.sizes[domain] for domain in run.train_domains)
    problem = Problem(sizes, len(data.classes), data.shape, data.low, data.high)
    network = Reader(answer, len(data.classes))
    return TrainedRun(run, data, ALGORITHMS["ERM"](network, problem, run.hparams, torch.Generator()), Path())


class Memory:
    """Knows these uint8 images by heart, and answers 0 to any other."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        size = images[0].numel()
        self.direction = torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.keys, order = self.key(images / 255).sort()
        self.labels = labels[order]

    def key(self, x: Tensor) -> Tensor:
        return (x * 255).round().flatten(1).double() @ self.direction

    def __call__(self, x: Tensor) -> Tensor:
        keys = self.key(x)
        at = torch.searchsorted(self.keys, keys - 1e-6).clamp(max=len(self.keys) - 1)
        return torch.where((self.keys[at] - keys).abs() < 1e-6, self.labels[at], 0)


@pytest.fixture(scope="module")
def coloured() -> Environments:
    return DATASETS["ColoredMNIST-embedded"].load()


@pytest.fixture(scope="module")
def scenes() -> Environments:
    return DATASETS["BackgroundDigits"].load()


def test_a_model_that_reads_colour(coloured: Environments) -> None:
    found = audit(reading(coloured, "-90%", lambda x: x.flatten(2).sum(2).argmax(1)))
    assert isinstance(found.use, ColourUse)
    assert found.use.colour == found.use.changed == 1 and found.use.digit == found.use.constant == 0.5
    assert found.use.accuracy["-90%"] == pytest.approx(0.1, abs=0.02)
    for score in found.scores:
        assert found.use.swapped[score.domain] == pytest.approx(1 - score.accuracy)
    assert found.sentences[0].startswith("Follows colour in 100 % of the cases")
    opposite = audit(reading(coloured, "-90%", lambda x: x.flatten(2).sum(2).argmin(1)))
    assert opposite.sentences[0].startswith("Follows the opposite of colour in 100 %")


def test_a_model_that_reads_the_digit(coloured: Environments) -> None:
    low = (source_digits(coloured.name, Path()).labels < 5).long()
    memory = Memory(torch.cat([coloured.images, coloured.images.flip(1)]), torch.cat([low, low]))
    found = audit(reading(coloured, "+90%", memory))
    assert isinstance(found.use, ColourUse)
    assert found.use.digit == 1 and found.use.changed == 0 and found.use.colour == 0.5
    assert found.use.accuracy == found.use.swapped  # 25 % of the labels are noise, whatever the colour
    assert all(score.accuracy == pytest.approx(0.75, abs=0.05) for score in found.scores)
    assert found.sentences[0].startswith("Follows the digit in 100 % of the cases")


def test_a_model_that_reads_nothing(coloured: Environments) -> None:
    found = audit(reading(coloured, "+90%", lambda x: torch.ones(len(x), dtype=torch.int64)))
    assert found.sentences == ["Answers 0-4 in 100 % of the cases, whatever it sees."]
    mixed = audit(reading(coloured, "+90%", lambda x: (x.sum((1, 2, 3)) * 1e4).long() % 2))
    assert mixed.sentences[0].startswith("Follows neither colour nor digit clearly")


def test_a_model_that_needs_a_known_background(scenes: Environments) -> None:
    """Right over the backgrounds it knows, "0" over any other: every number follows."""
    digits, labels = source_digits("BackgroundDigits", Path())
    known = torch.cat([overlay(digits, background(scene)) for scene in SCENES if scene != "scene2"])
    found = audit(reading(scenes, "scene2", Memory(known, labels.repeat(3))))
    use = found.use
    assert isinstance(use, BackgroundUse) and use.unseen == "scene2"
    zeros = float((scenes.labels[scenes.rows("scene2")] == 0).double().mean())
    assert use.accuracy["scene2"] == pytest.approx(zeros) == use.black["scene2"]
    assert use.accuracy["scene1"] == use.swapped["scene2"] == 1 and use.alone["scene1"] == use.black["scene1"] < 0.2
    assert use.swapped["scene1"] == pytest.approx((2 + use.black["scene1"]) / 3)  # two other backgrounds are known
    assert use.gap.mean == pytest.approx(1 - zeros)
    assert use.gap.error == pytest.approx(math.sqrt(zeros * (1 - zeros) / 1250))
    assert "worse over the background of scene2" in found.sentences[0]


def test_of_a_model_that_was_trained_on_every_background_only_scores_are_told(scenes: Environments) -> None:
    trained = reading(scenes, "scene1", lambda x: torch.zeros(len(x), dtype=torch.long))
    everywhere = replace(trained, run=plan_run(Dataset.from_environments(scenes), "ERM", [], steps=1))
    assert audit(everywhere).use is None


def test_mixed_backgrounds() -> None:
    """Right in 80 of 100 images with the right background, in 50 of 100 with a random one."""
    dark, light = torch.zeros(100, 1, 8, 8, dtype=torch.uint8), torch.full((100, 1, 8, 8), 255, dtype=torch.uint8)
    labels = torch.arange(100) % 2
    same, mixed = torch.where(labels.view(-1, 1, 1, 1) == 1, light, dark), light.clone()
    same[:20] = 255 - same[:20]
    data = Environments.from_arrays({"Mixed-Same": (same, labels), "Mixed-Rand": (mixed, labels)}, name="MixedSame")
    found = audit(reading(data, "Mixed-Rand", lambda x: (x.mean((1, 2, 3)) > 0.5).long()))
    assert isinstance(found.use, MixedUse)
    out = next(look for look in held_out_images(reading(data, "Mixed-Rand", lambda x: x)) if look.seen).rows
    right = float((out >= 20).double().mean())
    assert found.use.gap.mean == pytest.approx(right - 0.5)
    assert found.use.gap.error == pytest.approx(math.sqrt(right * (1 - right) / len(out) + 0.25 / 100))


def test_scores_per_domain_and_class_and_their_worst_pair() -> None:
    labels = torch.arange(60) % 3
    images = torch.zeros(60, 1, 4, 4, dtype=torch.uint8)
    images[labels == 2] = 255
    other = images.clone()
    other[(labels == 1).nonzero()[:10]] = 255  # half of class 1 in domain b looks like class 2
    data = Environments.from_arrays({"$a_$": (images, labels), "b": (other, labels)}, classes=("x", "$y^", "z$"))
    model = reading(data, "b", lambda x: torch.where(x.mean((1, 2, 3)) > 0.5, 2, 1))
    found = audit(model)
    rows = {look.domain: look for look in held_out_images(model)}
    assert len(rows["$a_$"].rows) == 12 and rows["$a_$"].seen and len(rows["b"].rows) == 60 and not rows["b"].seen
    unseen = found.scores[1]
    assert unseen.per_class.tolist() == [0, 0.5, 1] and unseen.accuracy == 0.5 and unseen.counts.tolist() == [20] * 3
    assert found.worst is not None and (found.worst.domain, found.worst.label) == ("b", "x")
    assert found.probe is None and found.use is None  # a plain module has no features
    (sentence,) = found.sentences
    assert sentence.startswith("Worst at class x in b: 0 % of 20 images right, ")
    figure = audit_figure([found, found])
    figure.draw_without_rendering()  # names with dollar signs are no mathematics
    assert len(figure.axes) == 4


def few_of_one_class(wrong: Collection[int]) -> TrainedRun:
    """Unseen 12 images of x and of y and 4 of z, with a model that takes these of them for another class."""
    labels = torch.tensor([0] * 12 + [1] * 12 + [2] * 4)
    images = torch.arange(56, dtype=torch.uint8).reshape(56, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    seen, unseen = images.split(28)
    told = torch.where(torch.tensor([i in wrong for i in range(28)]), (labels + 1) % 3, labels)
    data = Environments.from_arrays({"a": (seen, labels), "b": (unseen, labels)}, classes=("x", "y", "z"))
    return reading(data, "b", Memory(images, torch.cat([labels, told])))


@pytest.mark.parametrize(
    ("wrong", "sentences", "cell"),
    [
        ((), ["Every answer is right."], ""),
        ((0,), ["Worst at class x in b: 92 % of 12 images right"], "x: 92 % of 12"),
        (
            (0, 24, 25, 26, 27),
            [
                "Worst of classes with at least 10 images at class x in b: 92 % of 12 images right",
                "Of classes with fewer than 10 images worst at class z in b: 0 % of 4 images right.",
            ],
            "z: 0 % of 4",
        ),
        (
            (27,),
            ["Of classes with fewer than 10 images worst at class z in b: 75 % of 4 images right."],
            "z: 75 % of 4",
        ),
        ((*range(9), 27), ["Worst at class x in b: 25 % of 12 images right"], "x: 25 % of 12"),
    ],
    ids=["all right", "one wrong", "the few are worse", "only of the few", "the few are better"],
)
def test_the_worst_class_of_few_images_is_told_apart(wrong: Collection[int], sentences: list[str], cell: str) -> None:
    found = audit(few_of_one_class(wrong))
    unseen = found.scores[1]
    assert not unseen.seen and unseen.counts.tolist() == [12, 12, 4]
    assert cell_of_worst(unseen, found.classes) == cell
    told = found.sentences
    assert len(told) == len(sentences) and all(map(str.startswith, told, sentences)), told


def test_almost_all_right_is_not_all() -> None:
    assert str(WorstPair("b", "x", 0.998, 500)) == "class x in b: 99.8 % of 500 images right"


# the probe


def test_logistic_regression_is_at_its_minimum() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (200,), generator=generator)
    weights, bias = logistic_regression(x, y, 3)
    p = (x @ weights + bias).softmax(1) - nn.functional.one_hot(y, 3)
    assert float((x.T @ p / 200 + PENALTY * weights).abs().max()) < 1e-5
    assert float(p.mean(0).abs().max()) < 1e-5


def test_the_probe_on_features_that_tell_and_that_do_not() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = [torch.arange(300) % 2 for _ in range(3)]
    noise = [torch.randn(300, 4, generator=generator) for _ in range(3)]
    nothing = probe_domains(noise, labels, "abc")
    assert nothing is not None and nothing.tested == 450
    assert abs(nothing.accuracy - 1 / 3) < 4 * nothing.error and nothing.chance == pytest.approx(1 / 3)
    told = probe_domains([x + 6 * torch.eye(4)[e] for e, x in enumerate(noise)], labels, "abc")
    assert told is not None and told.accuracy > 0.98 and told.confusion.diag().min() > 0.95
    half = probe_domains([noise[0], noise[1], noise[2] + 9], labels, "abc")
    assert half is not None and half.accuracy == pytest.approx(2 / 3, abs=0.06)
    assert half.confusion.sum(1).tolist() == pytest.approx([1] * 3) and half.confusion[2, 2] > 0.98


def test_class_proportions_do_not_tell_domains_apart() -> None:
    """The features are the class; domains differ only in how often they have it."""
    labels = [torch.arange(400) % 8 == 0, torch.arange(400) % 2 == 0]
    one_hot = [nn.functional.one_hot(y.long(), 2).float() for y in labels]
    kept = equal_classes([y.long() for y in labels])
    assert [labels[e][rows].long().bincount().tolist() for e, rows in enumerate(kept)] == [[200, 50]] * 2
    found = probe_domains(one_hot, [y.long() for y in labels], "ab")
    assert found is not None and abs(found.accuracy - 0.5) < 4 * found.error
    assert probe_domains([x[:30] for x in one_hot], [torch.zeros(30).long(), torch.ones(30).long()], "ab") is None


def test_features_are_those_before_the_classifier(scenes: Environments) -> None:
    run = plan_run("BackgroundDigits", "ERM", 0, steps=1)
    problem = Problem((10,) * 3, 10, scenes.shape, scenes.low, scenes.high)
    features = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 7))
    method = ALGORITHMS["ERM"](Network(features, 10, feature_size=7), problem, run.hparams, torch.Generator())
    images = scenes.images[:300]
    told, kept = logits_and_features(TrainedRun(run, scenes, method, Path()), images, "scene1")
    assert kept is not None
    torch.testing.assert_close(kept, features(scenes.normalise(images)).detach())
    torch.testing.assert_close(told, method.network.classifier(kept).detach())


# the command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ERM", "MTL"):
        train(plan_run("BackgroundDigits", name, 1, steps=2, hparams={"batch_size": 8}), "runs", device="cpu")
    status, out, _ = command(capsys, "audit", "runs", "--out", "audit.svg", "--json")
    told = json.loads(out)["audits"]
    assert status == 0 and Path("audit.svg").exists() and [found["method"] for found in told] == ["ERM", "MTL"]
    assert [domain["domain"] for domain in told[0]["domains"]] == list(SCENES)
    assert told[0]["probe"]["chance"] == 0.25 and told[0]["shortcut"]["unseen"] == "scene2" and told[0]["sentences"]
    status, out, _ = command(capsys, "audit", Path("runs", told[0]["run"]))
    assert status == 0 and "scene2 (unseen)" in out and "background alone" in out


def test_every_selected_model_is_asked_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = TrainingOptions(steps=2, hparams={"batch_size": 8})
    plan = plan_sweep("BackgroundDigits", ("ERM",), options, draws=2, trials=1, test_domains=("scene2",))
    for run in plan.runs():
        train(run, "runs", device="cpu")
    status, out, _ = command(capsys, "audit", "runs", "--selected", "--json")
    told = json.loads(out)["audits"]
    rules = {rule for found in told for rule in found["chosen"]}
    assert status == 0 and rules == {"training-domain", "oracle", "worst-domain", "worst-subgroup"}
    for found in told:
        assert found["unseen"] == ["scene2"] and found["shortcut"]["unseen"] == "scene2" and found["sentence"]
    shown = recorded_progress(monkeypatch)
    repeated = list(audit_selected(Path("runs"), RunFilter(), None, "cpu"))
    assert shown["audits of selected models"] == [len(told), len(told)] and len(repeated) == len(told)
    for model in Path("runs").glob("*/model.safetensors"):
        model.unlink()
    again = command(capsys, "audit", "runs", "--selected", "--json")
    assert again.status == 0 and json.loads(again.out)["audits"] == told, "audits are kept with the runs"
    assert "chosen by" in command(capsys, "audit", "runs", "--selected").out
    assert command(capsys, "audit", "runs", "--selected", "--out", "x.png").is_one_line_error
    for kept in Path("runs").glob("*/audit.json"):
        kept.unlink()
    assert command(capsys, "audit", "runs", "--selected").is_one_line_error
