"""Backbones of transformers from training to export: every command works with them, and folders need no hub."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import domainwise as dw
from commands import Command
from domainwise.analysis.cam import grad_cam
from domainwise.core.errors import UserError
from domainwise.engine import frozen_features
from domainwise.engine.execution.data_parallel import check_features
from domainwise.engine.session import Session
from domainwise.nets import hub
from domainwise.protocol.run_folder import FROZEN
from hub_models import CLASS_TOKEN, FAMILIES, MEAN, SIZE, UNUSUAL
from small_datasets import make_folder

Backbones = Callable[[str], Path]
QUICK = ("--steps", 2, "--hparam", "batch_size=4", "--device", "cpu")


@pytest.fixture(autouse=True)
def nothing_recent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(frozen_features, "_recent", type(frozen_features._recent)())
    yield


def noise(seed: int = 0) -> dw.Environments:
    rng = np.random.default_rng(seed)
    domains = {d: (rng.integers(0, 256, (10, 3, SIZE, SIZE), np.uint8), np.arange(10) % 2) for d in "abc"}
    return dw.Environments.from_arrays(domains, name="noise")


def fit(folder: Path, algorithm: str = "ERM", **options: object) -> dw.Model:
    options = {"steps": 2, "hparams": {"batch_size": 4}} | options
    return dw.fit(noise(), algorithm, network=f"hf:{folder}", device="cpu", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_train_predict_and_cam(family: str, backbone: Backbones, tmp_path: Path, domainwise: Command) -> None:
    make_folder(tmp_path / "photos", count=5)
    network = ("--network", f"hf:{backbone(family)}", "--augmentation", "none")
    trained = domainwise(
        "train", "--data", "photos", *network, "--algorithm", "ERM", *QUICK, "--test-domain", 0, "--json"
    )
    assert trained.status == 0, trained.err
    pooled = "class token" if family in CLASS_TOKEN else ""
    assert f"network: hf:{family}: 16 features, " in trained.err and pooled in trained.err
    summary = json.loads(trained.out)
    assert summary["run"]["image_size"] == SIZE
    predicted = domainwise("predict", "runs/train", "photos/clinic/cat", "--json")
    assert predicted.status == 0 and len(predicted.out.splitlines()) == 5, predicted.err
    for method in ("grad-cam", "rollout") if family in CLASS_TOKEN else ("grad-cam",):
        seen = domainwise("cam", summary["folder"], "--method", method, "--out", "heat.png", "--limit", 2, "--json")
        assert seen.status == 0 and (tmp_path / "heat.png").stat().st_size > 1000, seen.err


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sweep_and_an_audit(
    family: str, backbone: Backbones, tmp_path: Path, domainwise: Command, quick_workers: None
) -> None:
    make_folder(tmp_path / "photos", count=5)
    named = ("--network", f"hf:{backbone(family)}", "--augmentation", "none", "--freeze", "features")
    swept = domainwise(
        "sweep", "--data", "photos", *named, *QUICK, "--algorithms", "ERM,VREx", "--hparams", 1, "--trials", 1,
        "--test-domains", 0, "--out", "runs/sweep", "--workers", 1, "--json",
    )  # fmt: skip
    assert swept.status == 0, swept.err
    shown = json.loads(domainwise("table", "runs/sweep", "--format", "json").out)
    assert shown["tables"][0]["network"] == f"hf:{family}", "a folder goes by its name"
    run = next(one for one in (tmp_path / "runs/sweep").glob("*/records.jsonl")).parent
    audited = domainwise("audit", run, "--device", "cpu")
    assert audited.status == 0, audited.err


def test_a_comparison_of_probes_as_documented(
    backbone: Backbones, tmp_path: Path, domainwise: Command, quick_workers: None
) -> None:
    """Without CORAL, which frozen features leave as ERM; named, it is refused."""
    make_folder(tmp_path / "photos", count=5)
    data = ("--data", "photos", "--network", f"hf:{backbone('dinov2')}")
    frozen = (*data, "--freeze", "features", "--augmentation", "none")
    small = (*QUICK, "--hparams", 1, "--trials", 1, "--workers", 1)
    compared = domainwise("compare", *frozen, *small, "--out", "model", "--json")
    assert compared.status == 0, compared.err
    assert [row["method"] for row in json.loads(compared.out)["table"]["rows"]] == [
        "ERM", "ERM + SMA", "DAT", "DAT + SMA",
    ]  # fmt: skip
    assert len(domainwise("predict", "model", "photos/clinic/cat", "--json").out.splitlines()) == 5
    refused = domainwise("compare", *frozen, *small, "--algorithms", "ERM,CORAL")
    assert refused.status == 2 and "all that CORAL adds happens in the features" in refused.err.splitlines()[-1]
    written = domainwise("features", *data[1:], "--out", "vectors", "--device", "cpu")
    assert written.status == 0 and "30 images, 16 features each" in written.out, written.err
    written = domainwise("features", *data[1:], "--out", "new/folder/x.safetensors", "--device", "cpu")
    assert written.status == 0 and Path("new/folder/x.safetensors").is_file(), written.err
    compared = domainwise("compare", "--dataset", "vectors", "--network", "linear", *small, "--json")
    assert compared.status == 0 and json.loads(compared.out)["table"]["rows"][2]["method"] == "DAT", compared.err
    assert "ERM, CORAL, DAT" in domainwise("compare", "--dataset", "vectors", *small, "--dry-run").err


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_loads_where_no_hub_and_no_folder_is(family: str, backbone: Backbones, tmp_path: Path) -> None:
    folder = shutil.copytree(backbone(family), tmp_path / family)
    model = fit(folder)
    expected = model.predict_proba(noise(1).images)
    model.save(tmp_path / "model")
    shutil.rmtree(folder)
    hub._image_facts.cache_clear()
    loaded = dw.load_model(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(noise(1).images), expected)
    assert loaded.card.network == f"hf:{family}" and "transformers" in loaded.card.versions
    assert "licence\\: unknown" in (tmp_path / "model/README.md").read_text()
    assert loaded.card.mean == pytest.approx(MEAN)
    assert len(loaded.drift(noise(1).images[:6]).domains) == 3


@pytest.mark.parametrize(
    "family",
    [pytest.param(one, marks=[] if one in ("vit", "convnext") else pytest.mark.slow) for one in (*FAMILIES, *UNUSUAL)],
)
def test_export_to_onnx(family: str, backbone: Backbones, tmp_path: Path) -> None:
    fit(backbone(family)).export(tmp_path / "model.onnx")  # compares what it wrote with the model


@pytest.mark.parametrize(
    "family", ["dinov2", *(pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES if n != "dinov2")]
)
def test_export_to_torch(family: str, backbone: Backbones, tmp_path: Path) -> None:
    fit(backbone(family)).export(tmp_path / "model.pt2")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["grad-cam", "hires-cam"])
def test_heat_is_where_the_classifier_looks(family: str, method: str, backbone: Backbones) -> None:
    """Some heat, and another for the other class: of two classes, each patch speaks for one of them."""
    model = fit(backbone(family))
    x = model.preprocessing.normalise(noise().images[:3])
    heat = [
        grad_cam(model.algorithm, x, torch.full((3,), c), predict=model.algorithm.predict, method=method).heat
        for c in (0, 1)
    ]
    assert heat[0].shape == (3, SIZE, SIZE) and float(heat[0].sum() + heat[1].sum()) > 1e-3
    assert not torch.allclose(*heat)


def test_rollout_needs_attention_of_all_patches(backbone: Backbones) -> None:
    model = fit(backbone("swin"))
    with pytest.raises(UserError, match="rollout is for vision transformers"):
        grad_cam(model.algorithm, noise().images[:2].float(), method="rollout")


def plan(folder: Path, algorithm: str = "ERM", **options: object) -> dw.Run:
    data = dw.data.catalogue.Dataset.from_environments(noise())
    chosen = {"steps": 3, "evaluate_every": 2, "hparams": {"batch_size": 4}} | options
    return dw.plan(data, algorithm, ["c"], network=f"hf:{folder}", **chosen)


def test_a_frozen_probe_is_training_with_a_frozen_network(backbone: Backbones) -> None:
    run = plan(backbone("dinov2"), freeze="features")
    device = torch.device("cpu")
    features = frozen_features.frozen_features(run, noise(), device)
    assert features is not None and features.images.shape == (30, 16)
    on_vectors, on_images = Session(run, noise(), device, features=features), Session(run, noise(), device)
    for session in (on_vectors, on_images):
        for _ in range(3):
            session.step()
    for name, value in on_images.algorithm.state_dict().items():
        torch.testing.assert_close(on_vectors.algorithm.state_dict()[name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("part, moving", [("attention", "attention"), ("last:1", "layers.1."), ("", "")])
def test_only_the_named_part_trains(part: str, moving: str, backbone: Backbones, tmp_path: Path) -> None:
    session = Session(plan(backbone("vit"), train=part), noise(), torch.device("cpu"))
    before = {name: value.clone() for name, value in session.algorithm.state_dict().items()}
    session.step()
    changed = {name for name, value in session.algorithm.state_dict().items() if not torch.equal(value, before[name])}
    of_features = {name for name in changed if name.startswith("network.features.")}
    assert of_features and all(moving in name or "model.layernorm" in name for name in of_features)
    assert any(name.startswith("network.classifier") for name in changed)
    assert set(session.frozen).isdisjoint(changed) and bool(session.frozen) == bool(part)


def test_frozen_parts_are_saved_once(backbone: Backbones, tmp_path: Path) -> None:
    for trial in (0, 1):
        run = plan(backbone("vit"), train="attention", trial=trial)
        dw.train(run, tmp_path, environments=noise(), device="cpu")
    assert len(list((tmp_path / FROZEN).iterdir())) == 1


@pytest.mark.parametrize("algorithm", ["ERM", "MLDG", "EQRM", "EnsembleUAT"])
def test_layers_learn_at_their_own_rates(algorithm: str, backbone: Backbones) -> None:
    """The first step of Adam has the length of the learning rate."""
    hparams = {"batch_size": 4, "lr": 1e-3} | ({"anneal": 5} if algorithm == "EQRM" else {})
    run = plan(backbone("vit"), algorithm, layer_decay=0.5, hparams=hparams)
    session = Session(run, noise(), torch.device("cpu"))
    before = {name: value.clone() for name, value in session.algorithm.named_parameters()}
    session.step()
    longest: dict[str, float] = {}
    for name, value in session.algorithm.named_parameters():
        for part in ("embeddings.patch", "layers.0.", "layers.1.", "classifier"):
            if part in name:
                longest[part] = max(longest.get(part, 0.0), float((value - before[name]).detach().abs().max()))
    expected = {"embeddings.patch": 0.125e-3, "layers.0.": 0.25e-3, "layers.1.": 0.5e-3, "classifier": 1e-3}
    assert longest == pytest.approx(expected, rel=0.05)


def test_recipes_of_parts_are_part_of_the_identity(backbone: Backbones) -> None:
    runs = [
        plan(backbone("vit"), **one) for one in ({}, {"train": "attention"}, {"train": "last:1"}, {"layer_decay": 0.5})
    ]
    assert len({run.id for run in runs}) == 4
    assert plan(backbone("vit"), freeze="none").id == runs[0].id and "train" not in runs[0].describe()
    for wrong in (
        {"train": "last:0"},
        {"train": "all"},
        {"train": "attention", "freeze": "features"},
        {"layer_decay": 0},
    ):
        with pytest.raises(UserError):
            plan(backbone("vit"), **wrong)


def test_what_cannot_work_is_said_before_training(backbone: Backbones) -> None:
    with pytest.raises(UserError, match="ARM adds an input channel"):
        plan(backbone("vit"), "ARM")
    with pytest.raises(UserError, match="starts from weights for 3 channels"):
        dw.plan("ColoredMNIST", "ERM", ["-90%"], network=f"hf:{backbone('vit')}")
    with pytest.raises(UserError, match="IGA differentiates twice, which the attention of"):
        fit(backbone("data2vec"), "IGA")
    assert fit(backbone("data2vec")).predict(noise().images[:2]).shape == (2,)
    model = fit(backbone("resnet"))
    check_features(model.algorithm.network.features, "resnet")  # several processes may share a batch


@pytest.mark.parametrize("algorithm", ["DAT", "IGA", "MIRO", "SWAD", "LDAT"])
def test_methods_that_ask_most_of_a_network(algorithm: str, backbone: Backbones) -> None:
    options: dict[str, object] = {"average": "sma", "precision": "bf16"} if algorithm == "SWAD" else {}
    fit(backbone("vit"), "ERM" if algorithm == "SWAD" else algorithm, **options)
