"""Exported files: the model's own numbers on real and random inputs, for any batch, normalisation included."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import domainwise as dw
from commands import commands
from domainwise.core.errors import UserError
from domainwise.models import export as exporting
from domainwise.models.export import export

RANDOM = np.random.default_rng(0)


def images(size: int = 16, mean: list[float] | None = None) -> dw.Environments:
    domains = {d: (RANDOM.integers(0, 256, (20, 3, size, size), np.uint8), np.arange(20) % 3) for d in "abc"}
    return dw.Environments.from_arrays(domains, mean=mean, std=[0.2, 0.3, 0.4], classes=("ü", "b", "c"))


def rows() -> dw.Environments:
    domains = {d: (RANDOM.normal(5, 3, (20, 4)), np.arange(20) % 2) for d in "abc"}
    return dw.Environments.from_arrays(domains)


def fit(data: dw.Environments, algorithm: str = "DAT", **options: Any) -> dw.Model:
    return dw.fit(data, algorithm, steps=3, hparams={"batch_size": 4}, device="cpu", **options)


def agree(file: Path, model: dw.Model, inputs: np.ndarray) -> None:
    """onnxruntime on the file, and the model, at several batch sizes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    for n in (1, 2, 7, len(inputs)):
        logits, probabilities = session.run(["logits", "probabilities"], {given.name: inputs[:n]})
        np.testing.assert_allclose(probabilities, model.predict_proba(inputs[:n]), atol=1e-4)
        np.testing.assert_allclose(logits - logits.mean(1, keepdims=True), _centred(model, inputs[:n]), atol=1e-4)


def _centred(model: dw.Model, inputs: np.ndarray) -> np.ndarray:
    """Logits, up to the constant that the logarithm of probabilities loses."""
    told = np.log(model.predict_proba(inputs))
    return told - told.mean(1, keepdims=True)


def test_onnx_gives_the_models_numbers(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    data = images(mean=[0.5, 0.4, 0.3])
    model = fit(data)
    file = export(model, "onnx", tmp_path / "new" / "model.onnx")
    agree(file, model, data.images.numpy())
    agree(file, model, RANDOM.integers(0, 256, (9, 3, 16, 16), np.uint8))
    graph = onnx.load(file)
    onnx.checker.check_model(graph)
    told = {entry.key: entry.value for entry in graph.metadata_props}
    assert json.loads(told["classes"]) == ["ü", "b", "c"]
    assert told["input"].startswith("uint8 [N, 3, 16, 16]: RGB channels first, values 0 to 255")
    assert graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param, "the batch is free"
    assert list(tmp_path.rglob("*")) == [tmp_path / "new", file], "nothing else is left"


def test_torch_export_gives_the_models_numbers_on_vectors(tmp_path: Path) -> None:
    data = rows()
    model = fit(data, "ERM")
    file = export(model, "torch", tmp_path / "model.pt2")
    extra = {"metadata.json": ""}
    program = torch.export.load(file, extra_files=extra).module()
    for n in (1, 2, 7, 60):
        _, probabilities = program(data.images[:n].float())
        np.testing.assert_allclose(probabilities.detach(), model.predict_proba(data.images[:n].numpy()), atol=1e-4)
    assert json.loads(extra["metadata.json"])["input"] == "float32 [N, 4]: raw rows; they are standardised inside"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "network"), [("EnsembleUAT", "small-cnn"), ("SagNet", "mnist-cnn"), ("ERM", "resnet18-scratch")]
)
def test_other_networks_as_onnx(algorithm: str, network: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    data = images(32)
    model = fit(data, algorithm, network=network)
    agree(export(model, "onnx", tmp_path / "model.onnx"), model, data.images[:9].numpy())


@pytest.mark.slow
def test_vectors_as_onnx_and_images_as_torch(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    data = rows()
    model = fit(data)
    agree(export(model, "onnx", tmp_path / "rows.onnx"), model, data.images.float().numpy())
    other = images()
    pictured = fit(other)
    program = torch.export.load(pictured.export(tmp_path / "images.pt2")).module()
    told = program(other.images[:5])[1].detach()
    np.testing.assert_allclose(told, pictured.predict_proba(other.images[:5]), atol=1e-4)


@pytest.mark.parametrize("algorithm", ["ARM", "MTL"])
def test_models_that_depend_on_their_batch_are_refused(algorithm: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"predictions of {algorithm} depend on their batch"):
        export(fit(images(), algorithm), "onnx", tmp_path / "model.onnx")


def test_mistakes_and_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fit(images(), "ERM")
    with pytest.raises(UserError, match="unknown format to export to 'onxx': did you mean 'onnx'"):
        export(model, "onxx", tmp_path / "model")
    with pytest.raises(UserError, match="is a folder: name a file"):
        export(model, "onnx", tmp_path)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"needs onnxscript: pip install 'domainwise\[onnx\]'"):
        export(model, "onnx", tmp_path / "model.onnx")
    with pytest.raises(UserError, match=r"model\.exe: name a file that ends in \.onnx or \.pt2"):
        model.export(tmp_path / "model.exe")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_differs_from_the_model_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = exporting._RUNNERS["torch"]

    def wrong(file: Path) -> exporting.Runner:
        return lambda x: tuple(part + 0.01 for part in honest(file)(x))  # type: ignore[return-value]

    monkeypatch.setitem(exporting._RUNNERS, "torch", wrong)
    with pytest.raises(UserError, match=r"differs from the model by 0\.01 on 1 inputs: not written"):
        export(fit(rows(), "ERM"), "torch", tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fit(rows(), "ERM").save("model")
    result = commands(capsys)("export", "model", "--to", "torch")
    assert result.status == 0 and result.err == "" and "model/model.pt2: agrees with the model" in result.out
    assert (tmp_path / "model" / "model.pt2").is_file()
    assert commands(capsys)("export", "model", "--to", "exe").is_one_line_error
