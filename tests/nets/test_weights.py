"""Pre-trained weights: found, verified, read without executing code, and copied into networks."""

import hashlib
import json
import os
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import domainwise as dw
from commands import exit_status
from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.engine.session import Session
from domainwise.nets import NETWORKS, loading, weights
from domainwise.nets.network import build, network

DATA = Path(os.environ.get("DOMAINWISE_DATA", ""))
RESNET50 = DATA / "resnet50_imagenet.safetensors"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    return tmp_path


@pytest.fixture
def tiny() -> Iterator[str]:
    """A registered network that starts from a file of the user's own."""

    @network("tiny", weights="tiny.safetensors")
    def features(shape: tuple[int, ...]) -> nn.Module:
        net = nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        net.out_features = 4
        return net

    yield "tiny"
    del NETWORKS._things["tiny"], NETWORKS._options["tiny"]


def tensors(channels: int = 3) -> dict[str, Tensor]:
    torch.manual_seed(7)
    return {"0.weight": torch.randn(4, channels, 3, 3), "0.bias": torch.randn(4)}


def environments() -> dw.Environments:
    rng = np.random.default_rng(0)
    arrays = {d: (rng.integers(0, 256, (20, 3, 8, 8), np.uint8), np.arange(20) % 2) for d in ("a", "b")}
    return dw.Environments.from_arrays(arrays, name="tiny images")


def plan(name: str, **choices: object) -> dw.Run:
    data = Dataset.from_environments(environments())
    return dw.plan(data, "ERM", ["b"], network=name, steps=2, hparams={"batch_size": 4}, **choices)


def test_published_weights_are_planned_where_they_are_not(root: Path) -> None:
    assert weights.planned("resnet18") == weights.planned("resnet18-live") == "resnet18-f37072fd.pth#f37072fd47e89c5e"
    assert weights.planned("resnet50") == "resnet50-0676ba61.pth#0676ba61b6795bbe"
    assert weights.planned("resnet18-scratch") == weights.planned("mnist-cnn") == ""
    with pytest.raises(UserError, match=r"no weights resnet18-f37072fd.pth: .*domainwise weights get resnet18$"):
        weights.locate(weights.planned("resnet18"))
    with pytest.raises(UserError, match=r"no weights resnet50_imagenet.safetensors: .*give the path of the file$"):
        weights.planned("resnet50-v1")
    for known in weights.WEIGHTS.values():
        assert known.sha256[:8] in known.file, "torchvision's names carry the first 8 digits"


def test_files_are_found_by_path_in_the_weights_folder_and_in_the_root(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    for folder in (root, root / "weights", elsewhere):
        save_file({"x": torch.tensor([float(len(str(folder)))])}, folder / "net.safetensors")
    assert weights.find("net.safetensors") == root / "weights" / "net.safetensors"
    (root / "weights" / "net.safetensors").unlink()
    assert weights.find("net.safetensors") == root / "net.safetensors"
    own = elsewhere / "net.safetensors"
    assert weights.planned("any", own) == f"{own}#{weights.fingerprint(own)}"
    assert weights.planned("any", "net.safetensors").startswith("net.safetensors#"), "the data root may move"
    assert weights.locate(weights.planned("any", own)) == own


def test_a_run_starts_from_its_file_and_knows_it(root: Path, tiny: str, tmp_path: Path) -> None:
    save_file(tensors(), root / "weights" / "tiny.safetensors")
    run = plan(tiny)
    assert run.weights == f"tiny.safetensors#{weights.fingerprint(root / 'weights' / 'tiny.safetensors')}"
    session = Session(run, environments(), torch.device("cpu"))
    assert torch.equal(session.algorithm.network.features[0].weight, tensors()["0.weight"])
    outcome = dw.train(run, tmp_path / "runs", environments=environments(), device="cpu")
    assert outcome.status.status == "done"

    other = tmp_path / "moved.safetensors"
    (root / "weights" / "tiny.safetensors").rename(other)
    assert plan(tiny, weights=str(other)).id == run.id, "where the file lies is not part of the identity"
    with pytest.raises(UserError, match=r"no weights tiny.safetensors: looked in"):
        Session(run, environments(), torch.device("cpu"))
    changed = tensors() | {"0.bias": torch.zeros(4)}
    save_file(changed, root / "tiny.safetensors")
    assert plan(tiny).id != run.id
    with pytest.raises(UserError, match=r"tiny.safetensors is not the file the run was planned with: .* expected"):
        dw.train(run, tmp_path / "again", environments=environments(), device="cpu")


def test_arm_copies_a_slice_of_the_pretrained_kernel(root: Path, tiny: str) -> None:
    save_file(tensors(), root / "tiny.safetensors")
    run = dw.plan(Dataset.from_environments(environments()), "ARM", ["b"], network=tiny, steps=1)
    kernel = Session(run, environments(), torch.device("cpu")).algorithm.network.features[0].weight
    assert torch.equal(kernel[:, :3], tensors()["0.weight"]) and torch.equal(kernel[:, 3], kernel[:, 0])


def test_a_model_trained_here_can_be_a_start(root: Path, tiny: str, tmp_path: Path) -> None:
    save_file(tensors(), root / "tiny.safetensors")
    outcome = dw.train(plan(tiny), tmp_path / "runs", environments=environments(), device="cpu", save="last")
    model = outcome.folder / "model.safetensors"
    again = Session(plan(tiny, weights=str(model)), environments(), torch.device("cpu"))
    trained = outcome.algorithm.network.features[0].weight
    assert torch.equal(again.algorithm.network.features[0].weight, trained)
    assert not torch.equal(trained, tensors()["0.weight"])


def test_pretrained_networks_need_three_channels() -> None:
    with pytest.raises(UserError, match="resnet18 starts from weights for 3 channels, but ColoredMNIST has 2"):
        dw.plan("ColoredMNIST", "ERM", ["-90%"], network="resnet18")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_formats_casts_and_a_head(suffix: str, tmp_path: Path) -> None:
    features = build("resnet18-scratch", (3, 32, 32), 2).features
    state = {key: value.half() for key, value in features.state_dict().items() if "num_batches" not in key}
    state |= {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    path = tmp_path / f"net{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    other = build("resnet18", (3, 32, 32), 2).features
    loading.fill(other, loading.read(path), path)
    for key, value in other.state_dict().items():
        assert value.dtype == (torch.int64 if key.endswith("tracked") else torch.float32)
        assert key.endswith("tracked") or torch.equal(value, state[key].float())


class Malice:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> object:
        return (Path.touch, (self.target,))


def test_code_is_not_executed(tmp_path: Path) -> None:
    victim, path = tmp_path / "executed", tmp_path / "bad.pth"
    torch.save({"x": torch.zeros(1), "y": Malice(victim)}, path)
    with pytest.raises(UserError, match=r"bad.pth holds more than tensors.*state_dict\(\) as .safetensors$"):
        loading.read(path)
    path.write_bytes(pickle.dumps(Malice(victim), protocol=2))
    with pytest.raises(UserError, match="could execute code"):
        loading.read(path)
    assert not victim.exists()


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    torch.save(torch.zeros(2), tmp_path / "tensor.pth")
    torch.save({"epoch": 3}, tmp_path / "numbers.pth")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00")
    whole = tmp_path / "whole.pth"
    torch.save({"x": torch.zeros(1000)}, whole)
    (tmp_path / "cut.pth").write_bytes(whole.read_bytes()[:1000])
    (tmp_path / "net.h5").touch()
    for name, reason in {
        "tensor.pth": "is not a dictionary of tensors",
        "numbers.pth": "is not a dictionary of tensors",
        "cut.safetensors": "is damaged",
        "cut.pth": "cannot be read as weights",
        "net.h5": "files ending in .safetensors, .pth, .pt",
    }.items():
        with pytest.raises(UserError, match=reason) as error:
            loading.read(tmp_path / name)
        assert name in str(error.value) and "\n" not in str(error.value)


def test_wrong_keys_are_named_and_counted(tmp_path: Path) -> None:
    features = build("resnet18-scratch", (1, 32, 32), 2).features
    state = build("resnet18-scratch", (3, 32, 32), 2).features.state_dict()
    for i in range(2):
        del state[f"layer4.{i}.conv1.weight"], state[f"layer4.{i}.bn1.weight"]
    state["head.weight"] = torch.zeros(1)
    with pytest.raises(UserError) as error:
        loading.fill(features, state, Path("x.pth"))
    assert str(error.value) == (
        "x.pth does not fit ResNet: 4 keys missing (layer4.0.conv1.weight, layer4.0.bn1.weight, layer4.1.conv1.weight, "
        "...); 1 key unknown (head.weight); "
        "1 key of another shape (conv1.weight [64, 3, 7, 7] instead of [64, 1, 7, 7])"
    )


def test_planning_many_runs_reads_a_file_once(root: Path, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "tiny.safetensors"
    save_file(tensors(), path)
    files._fingerprint.cache_clear()
    runs = {plan(tiny).id for _ in range(5)}
    assert len(runs) == 1 and files._fingerprint.cache_info().misses == 1
    before = weights.fingerprint(path)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    os.utime(path, (1, 1))
    assert weights.fingerprint(path) != before


def test_train_command_takes_a_file(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--dataset", "BackgroundDigits", "--algorithm", "ERM", "--steps", 1, "--out", tmp_path / "runs"]
    assert exit_status(*command, "--weights", "absent.pth") == 2 and "no weights absent.pth" in capsys.readouterr().err
    save_file(tensors(), tmp_path / "other.safetensors")
    assert exit_status(*command, "--weights", tmp_path / "other.safetensors") == 2
    assert "does not fit SmallConvNet: 4 keys missing" in capsys.readouterr().err


class Handler(BaseHTTPRequestHandler):
    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None: ...


def test_get_fetches_by_checksum_and_list_shows_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Handler, "body", os.urandom(5000))
    digest = hashlib.sha256(Handler.body).hexdigest()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(weights.Weights, "url", f"http://127.0.0.1:{server.server_port}/resnet18.pth")
    monkeypatch.setitem(weights.WEIGHTS, "resnet18", weights.Weights("net.pth", "small", "free", digest, 5000))
    try:
        assert exit_status("weights", "get", "resnet18") == 0
        assert (root / "weights" / "net.pth").read_bytes() == Handler.body
        assert weights.locate(weights.planned("resnet18")) == root / "weights" / "net.pth"
        (root / "weights" / "net.pth").unlink()
        monkeypatch.setattr(Handler, "body", bytes(5000))
        assert exit_status("weights", "get", "resnet18") == 2 and "checksum" in capsys.readouterr().err
        assert not (root / "weights" / "net.pth").exists()
    finally:
        server.shutdown()
        server.server_close()
    for name, words in (
        ("resnet19", "did you mean 'resnet18'"),
        ("resnet50-v1", "put yours into"),
        ("resnet50-augmix", "put it from https://"),
    ):
        assert exit_status("weights", "get", name) == 2 and words in capsys.readouterr().err

    save_file(tensors(), root / "mine.safetensors")
    assert exit_status("weights", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["weights"]["resnet18"]["path"] == "" and "0.485" in listed["normalisation"]
    assert listed["weights"]["resnet50"]["networks"] == ["resnet50", "resnet50-live"]
    assert listed["other_files"] == [str(root / "mine.safetensors")]
    assert exit_status("weights", "list") == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("resnet50-v1", "mine.safetensors", "BSD-3-Clause", "mean (0.485"))


IMAGENET = {"dog": range(151, 269), "elephant": (101, 385, 386), "guitar": (402, 546)}
"""The ImageNet classes that are a kind of dog, elephant or guitar."""


@pytest.mark.skipif(
    not (RESNET50.is_file() and (DATA / "PACS" / "photo").is_dir()),
    reason="needs resnet50_imagenet.safetensors and PACS in $DOMAINWISE_DATA",
)
def test_resnet50_names_what_pacs_photos_show() -> None:
    tensors = loading.read(RESNET50)
    features = NETWORKS["resnet50-v1"]((3, 224, 224)).eval()
    loading.fill(features, tensors, RESNET50)
    features.to(memory_format=torch.channels_last)
    mean, std = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    for name, classes in IMAGENET.items():
        files = sorted((DATA / "PACS" / "photo" / name).iterdir())[::12]
        images = [Image.open(file).convert("RGB").resize((256, 256)).crop((16, 16, 240, 240)) for file in files]
        x = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images]) / 255
        with torch.no_grad():
            logits = features((x - mean) / std) @ tensors["fc.weight"].float().T + tensors["fc.bias"].float()
        hits = sum(int(label) in classes for label in logits.argmax(1))
        assert hits / len(files) >= 0.85, (name, hits, len(files))
