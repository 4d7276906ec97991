"""Frozen features: computed once per image, cached by content, and trained on as if the network had made them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import domainwise as dw
from commands import Command
from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.data import feature_cache
from domainwise.data.catalogue import Dataset
from domainwise.data.environments import Environments
from domainwise.data.fingerprints import fingerprints
from domainwise.engine import frozen_features
from domainwise.engine.restore import restore
from domainwise.engine.session import Session
from domainwise.nets import NETWORKS
from domainwise.nets.network import network
from domainwise.protocol.run_folder import FROZEN
from small_datasets import make_folder

CPU = torch.device("cpu")
ON_FEATURES = [name for name, method in ALGORITHMS.items() if not (method.moves_features or method.reads_inputs)]


class TinyFeatures(nn.Sequential):
    """Eight features, and a count of the images that they were computed of."""

    out_features = 8
    images = 0

    def __init__(self, shape: tuple[int, ...]) -> None:
        pool = (nn.AdaptiveAvgPool2d(2), nn.Flatten())
        super().__init__(nn.Conv2d(shape[0], 2, 3), nn.BatchNorm2d(2), nn.ReLU(), *pool)

    def forward(self, x: Tensor) -> Tensor:
        type(self).images += len(x)
        return super().forward(x)


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The network "tiny" and its weights file, and an empty cache."""
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(frozen_features, "_recent", type(frozen_features._recent)())
    monkeypatch.setattr(TinyFeatures, "images", 0)
    monkeypatch.setattr(frozen_features, "CHUNK", 8)
    network("tiny")(TinyFeatures)
    torch.manual_seed(3)
    file = tmp_path / "tiny.safetensors"
    save_file(TinyFeatures((3, 8, 8)).state_dict(), file)
    yield file
    del NETWORKS._things["tiny"], NETWORKS._options["tiny"]


def images(seed: int = 0) -> Environments:
    rng = np.random.default_rng(seed)
    arrays = {d: (rng.integers(0, 256, (20, 3, 8, 8), np.uint8), np.arange(20) % 2) for d in ("a", "b", "c")}
    return Environments.from_arrays(arrays, name="tiny images", mean=[0.4] * 3, std=[0.3] * 3)


def plan(weights: Path, algorithm: str = "ERM", **options: object) -> dw.Run:
    chosen = {"network": "tiny", "weights": str(weights), "freeze": "features", "steps": 4, "evaluate_every": 2}
    small = {"batch_size": 4} | ({"memory": 8} if algorithm == "ADA" else {})
    return dw.plan(Dataset.from_environments(images()), algorithm, ["c"], hparams=small, **(chosen | options))


@pytest.mark.parametrize("algorithm", ON_FEATURES)
def test_training_on_features_is_training_with_the_frozen_network(algorithm: str, tiny: Path) -> None:
    run = plan(tiny, algorithm, threads=1)
    assert frozen_features.trains_on_features(run)
    features = frozen_features.frozen_features(run, images(), CPU)
    on_features, on_images = Session(run, images(), CPU, features=features), Session(run, images(), CPU)
    TinyFeatures.images = 0
    for _ in range(3):
        on_features.step()
    assert not TinyFeatures.images, "the network is not computed again"
    for _ in range(3):
        on_images.step()
    assert TinyFeatures.images
    other = on_images.algorithm.state_dict()
    for name, value in on_features.algorithm.state_dict().items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("change", [{"freeze": ""}, {"augmentation": "domainbed"}, {"track": ["penalties"]}])
def test_runs_that_need_images_have_images(tiny: Path, change: dict[str, object]) -> None:
    assert not frozen_features.trains_on_features(plan(tiny, **change))


@pytest.mark.parametrize("algorithm", ["AT", "UAT", "DAT", "LDAT", "EnsembleUAT", "WRM", "ADA", "Mixup"])
def test_methods_that_change_images_have_images(tiny: Path, algorithm: str) -> None:
    run = plan(tiny, algorithm)
    assert frozen_features.frozen_features(run, images(), CPU) is None


def test_a_run_saves_its_frozen_weights_once_and_is_restored_whole(tiny: Path, tmp_path: Path) -> None:
    for trial in (0, 1):
        outcome = dw.train(replace(plan(tiny), trial=trial), tmp_path / "runs", environments=images(), device="cpu")
    saved = load_file(outcome.folder / "model.safetensors")
    assert set(saved) == {"network.classifier.weight", "network.classifier.bias"}
    assert len(list((tmp_path / "runs" / FROZEN).iterdir())) == 1
    restored = restore(outcome.folder, environments=images(), save="last")
    expected = load_file(tiny)
    for name, value in restored.algorithm.network.features.state_dict().items():
        assert torch.equal(value, expected[name])
    rows = images().split("c", 1)["in"]
    logits = restored.algorithm.predict(images().normalise(images().images[rows]))
    accuracy = float((logits.argmax(1) == images().labels[rows]).double().mean())
    last = [record for record in outcome.records if record.step == 3]
    assert next(r.accuracy for r in last if (r.domain, r.split) == ("c", "in")) == accuracy
    next((tmp_path / "runs" / FROZEN).iterdir()).unlink()
    with pytest.raises(UserError, match="is missing: delete"):
        restore(outcome.folder, environments=images(), save="last")


def test_only_parts_that_learn_are_averaged(tiny: Path, tmp_path: Path) -> None:
    session = Session(plan(tiny, average="ema"), images(), CPU)
    assert session.average is not None and len(session.average.parameters) == 2


def test_features_equal_those_of_the_network_whatever_their_chunk(tiny: Path) -> None:
    reference = dw.extract_features(images(), "tiny", weights=tiny, device="cpu")
    net = TinyFeatures((3, 8, 8)).eval()
    net.load_state_dict(load_file(tiny))
    with torch.no_grad():
        expected = net(images().normalise(images().images))
    torch.testing.assert_close(reference.images, expected, rtol=1e-6, atol=1e-6)
    assert reference.domains == ("a", "b", "c") and torch.equal(reference.labels, images().labels)


def test_every_image_is_computed_once_wherever_it_appears(tiny: Path) -> None:
    first = dw.extract_features(images(), "tiny", weights=tiny, device="cpu").images
    frozen_features._recent.clear()
    TinyFeatures.images = 0
    assert torch.equal(dw.extract_features(images(), "tiny", weights=tiny, device="cpu").images, first)
    assert not TinyFeatures.images
    mixed = replace(images(), images=torch.cat([images().images[:59].flip(0), images(1).images[:1]]))
    again = dw.extract_features(mixed, "tiny", weights=tiny, device="cpu").images
    assert torch.equal(again[:59], first[:59].flip(0))
    assert TinyFeatures.images == 8, "one new image, in a chunk that is filled up"


def test_probes_of_several_runs_compute_every_image_once(tiny: Path) -> None:
    classifiers = []
    for trial, computed in ((0, 64), (1, 0)):  # in chunks of 8, the last of which is filled up
        run = replace(plan(tiny, start="probe", freeze=""), trial=trial)
        TinyFeatures.images = 0
        features = frozen_features.frozen_features(run, images(), CPU)
        probed = Session(run, images(), CPU, features=features).algorithm.network.classifier.weight
        assert TinyFeatures.images == computed
        without = Session(run, images(), CPU).algorithm.network.classifier.weight
        torch.testing.assert_close(probed, without, rtol=1e-3, atol=1e-4)
        classifiers.append(probed)
    assert not torch.equal(*classifiers), "other images are held out"


def test_other_weights_have_other_features(tiny: Path, tmp_path: Path) -> None:
    first = dw.extract_features(images(), "tiny", weights=tiny, device="cpu").images
    other = tmp_path / "other.safetensors"
    save_file(TinyFeatures((3, 8, 8)).state_dict(), other)
    assert not torch.allclose(dw.extract_features(images(), "tiny", weights=other, device="cpu").images, first)


@pytest.mark.parametrize(
    "changed", [(torch, "__version__", "9.9.0"), (frozen_features, "device_name", lambda _: "another processor")]
)
def test_another_torch_or_processor_computes_anew(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, changed: tuple[object, str, object]
) -> None:
    """The record of a run names both: it must not have used features that others have made."""
    dw.extract_features(images(), "tiny", weights=tiny, device="cpu")
    frozen_features._recent.clear()
    TinyFeatures.images = 0
    monkeypatch.setattr(*changed)
    dw.extract_features(images(), "tiny", weights=tiny, device="cpu")
    assert TinyFeatures.images


def test_an_interrupted_computation_continues_and_damage_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_cache, "SEGMENT", 10)
    keys, asked = fingerprints(images().images), []

    def compute(rows: Tensor) -> Tensor:
        asked.append(rows.tolist())
        if len(asked) == 3:
            raise KeyboardInterrupt
        return rows.float().view(-1, 1).repeat(1, 2)

    def features() -> Tensor:
        return feature_cache.cached_features(keys, compute, network="tiny", weights="1", size=8, computed_by="test")

    with pytest.raises(KeyboardInterrupt):
        features()
    assert torch.equal(features()[:, 0], torch.arange(60.0))
    assert [rows[0] for rows in asked] == [0, 10, 20, 20, 30, 40, 50], "two parts were kept"
    segment = next((tmp_path / "cache").rglob("000001.safetensors"))
    segment.write_bytes(segment.read_bytes()[:-1] + b"\1")
    asked.clear()
    assert torch.equal(features()[:, 0], torch.arange(60.0)) and asked == [list(range(10, 20))]


def test_the_command_writes_a_dataset_a_table_and_tensors(domainwise: Command, tiny: Path, tmp_path: Path) -> None:
    photos = make_folder(tmp_path / "photos")
    for out in ("features", "features.parquet", "features.safetensors"):
        command = ("features", str(photos), "--network", "tiny", "--weights", str(tiny), "--out", out)
        assert f"{out}: 36 images, 8 features each" in domainwise(*command).out
    expected = dw.extract_features(photos, "tiny", weights=tiny, device="cpu")
    saved = dw.load_dataset(tmp_path / "features")
    assert torch.equal(saved.images, expected.images) and saved.domains == expected.domains
    tensors = load_file(tmp_path / "features.safetensors")
    assert torch.equal(tensors["features"], expected.images) and torch.equal(tensors["labels"], expected.labels)
    table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "features.parquet").to_pydict()
    assert table["domain"] == [d for d, n in expected.sizes.items() for _ in range(n)]
    assert table["label"] == [expected.classes[label] for label in expected.labels.tolist()]
    assert torch.equal(torch.tensor(table["features"]), expected.images)
    shown = domainwise("train", "--dataset", "features", "--network", "linear", "--steps", "3", "--test-domain", "0")
    assert "done after step 2" in shown.out
    swept = domainwise("sweep", "--dataset", "features", "--network", "linear", "--algorithms", "ERM,SagNet")
    assert swept.is_one_line_error and "all that SagNet adds happens in the features" in swept.err
    assert not Path("runs/sweep").exists(), "said before the runs of ERM"
    assert "features of tiny" in domainwise("data", "cache", "list").out.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--network", "small-cnn", "--out", "x"), "small-cnn has no pre-trained weights"),
        (("--network", "tiny", "--weights", "tiny.safetensors", "--out", "x.csv"), "ends in .parquet or .safetensors"),
    ],
)
def test_what_cannot_be_done_is_said_first(
    domainwise: Command, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    make_folder(tmp_path / "photos")
    refused = domainwise("features", "photos", *arguments)
    assert refused.is_one_line_error and reason in refused.err
