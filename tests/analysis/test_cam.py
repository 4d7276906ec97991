"""Grad-CAM against cases computed by hand, and the command that draws it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from commands import command
from domainwise.analysis import attention
from domainwise.analysis.cam import Attention, grad_cam, last_map
from domainwise.core.errors import UserError
from domainwise.data.sources.digits import embedded_digits
from domainwise.data.sources.mnist import BackgroundDigits, background, overlay
from domainwise.engine.restore import restore
from domainwise.engine.train import train
from domainwise.nets.network import Network, build
from domainwise.reports.pictures import heatmap_grid
from domainwise.sweeps.plan_run import plan_run


class Linear(nn.Module):
    """Two maps A_k = w_k x of a one-channel image, averaged (or flattened), and a linear layer."""

    def __init__(self, head: torch.Tensor, pooled: bool = True) -> None:
        super().__init__()
        self.maps = nn.Conv2d(1, 2, 1, bias=False)
        self.maps.weight.data = torch.tensor([2.0, -1.0]).view(2, 1, 1, 1)
        self.head, self.pooled = head, pooled
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.maps(x)
        return (maps.mean((2, 3)) if self.pooled else maps.flatten(1)) @ self.head.T


IMAGE = torch.tensor([[[[1.0, -2.0], [3.0, 0.5]]]], dtype=torch.float64)


def test_grad_cam_by_hand() -> None:
    """With logit_c = sum_k v_ck mean(A_k): a_k = v_ck / 4 and heat = ReLU(sum_k v_ck w_k x) / 4."""
    head = torch.tensor([[1.0, 3.0], [2.0, 1.0]], dtype=torch.float64)
    model = Linear(head)
    for c, slope in ((0, 1 * 2 + 3 * -1), (1, 2 * 2 + 1 * -1)):
        seen = grad_cam(model, IMAGE, torch.tensor([c]))
        expected = torch.tensor([[max(slope * v / 4, 0) for v in row] for row in ([1.0, -2.0], [3.0, 0.5])])
        torch.testing.assert_close(seen.heat[0], expected.double(), rtol=0, atol=1e-12)
    # logits: maps average (1.25, -0.625); 1.25 - 1.875 < 2.5 - 0.625
    assert grad_cam(model, IMAGE).classes.tolist() == [1]


def test_the_two_methods_differ_only_where_positions_are_weighed() -> None:
    head = torch.tensor([[1.0, 2.0, 0.0, 1.0, 0.0, 0.0, 4.0, 0.0]], dtype=torch.float64)
    model = Linear(head, pooled=False)
    # hires: v A = (1 * 2, 2 * -4, 0 * 6 + 4 * -3, 1 * 1); grad-cam: a = (4 / 4, 4 / 4) -> A_1 + A_2 = x
    hires = grad_cam(model, IMAGE, torch.tensor([0]), method="hires-cam").heat[0]
    torch.testing.assert_close(hires, torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64))
    plain = grad_cam(model, IMAGE, torch.tensor([0])).heat[0]
    torch.testing.assert_close(plain, IMAGE[0, 0].relu())
    pooled = Linear(torch.tensor([[1.0, -3.0], [2.0, 1.0]], dtype=torch.float64))
    both = [grad_cam(pooled, IMAGE, method=method).heat for method in ("grad-cam", "hires-cam")]
    torch.testing.assert_close(both[0], both[1])
    with pytest.raises(UserError, match="unknown method"):
        grad_cam(model, IMAGE, method="cam")


def test_heat_is_enlarged_to_the_image() -> None:
    """A 2x2 map of a 4x4 image, bilinear with pixel centres at halves: weights 1, 3/4, 1/4, 0 along each side."""
    model = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 1, bias=False)).double()
    model[2].weight.data.fill_(1)
    x = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    x[..., :2, :2] = 1
    along = torch.tensor([1, 0.75, 0.25, 0], dtype=torch.float64)
    torch.testing.assert_close(grad_cam(model, x).heat[0], along[:, None] * along)


def test_batches_and_gradients_elsewhere_change_nothing() -> None:
    model = build("mnist-cnn", (1, 28, 28), 10).requires_grad_(False)
    model.train()
    x = torch.rand(7, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, parts = grad_cam(model, x, batch_size=7), grad_cam(model, x, batch_size=3)
    torch.testing.assert_close(whole.heat, parts.heat)
    assert model.training and not model.features.convolutions[0]._forward_hooks


def test_what_follows_may_work_in_place() -> None:
    """The first convolution's output is overwritten by its ReLU: its maps are then those after it."""
    model = build("mnist-cnn", (1, 28, 28), 10)
    seen = grad_cam(model, torch.rand(2, 1, 28, 28), layer="features.convolutions.0")
    assert seen.heat.shape == (2, 28, 28) and bool(seen.heat.isfinite().all())


@pytest.mark.parametrize(("network", "layer"), [("mnist-cnn", "features.norms.3"), ("small-cnn", "features.5")])
def test_the_last_maps_are_found(network: str, layer: str) -> None:
    assert last_map(build(network, (3, 28, 28), 10), torch.rand(2, 3, 28, 28)) == layer


def test_a_pooled_map_of_one_pixel_is_not_looked_at() -> None:
    pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert last_map(Network(pooled, 3, feature_size=2), torch.rand(1, 1, 8, 8)) == "features.1"


def test_networks_and_layers_without_maps() -> None:
    x = torch.rand(2, 1, 28, 28)
    with pytest.raises(UserError, match="no layer that puts out maps"):
        grad_cam(build("mlp", (1, 28, 28), 10), x)
    with pytest.raises(UserError, match="'classifier' puts out no maps"):
        grad_cam(build("small-cnn", (1, 28, 28), 10), x, layer="classifier")
    with pytest.raises(UserError, match=r"did you mean 'features\.5'"):
        grad_cam(build("small-cnn", (1, 28, 28), 10), x, layer="feature.5")


def test_share_inside() -> None:
    heat = torch.tensor([[[1.0, 3.0], [0.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]])
    masks = torch.tensor([[[True, True], [False, False]]]).expand(2, 2, 2)
    shares = Attention(heat, torch.zeros(2), torch.zeros(2)).share_inside(masks)
    assert shares[0] == 0.5 and shares[1].isnan()


def test_masks_are_where_the_ink_is() -> None:
    data = BackgroundDigits(Path())
    masks = attention.object_masks(data)
    assert masks is not None and masks.shape == (5000, 28, 28)
    assert int(masks.sum()) == int((embedded_digits().images > 0).sum())
    rows = data.rows("scene3")
    images, own = data.images[rows], masks[rows]
    empty = overlay(torch.zeros(1, 28, 28, dtype=torch.uint8), background("scene3"))
    behind = (images == empty).all(1)
    assert bool(behind[~own].all()) and float(behind[own].float().mean()) < 0.05


# models side by side


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("runs")
    runs = [
        plan_run("BackgroundDigits", name, "scene2", steps=2, hparams={"batch_size": 4})
        for name in ("ERM", "DAT", "EnsembleUAT")
    ]
    return [train(run, out, device="cpu").folder for run in runs]


def test_models_see_the_same_images(folders: list[Path]) -> None:
    models = attention.restore_all(folders)
    rows = attention.sample_rows(models[0].environments, "scene2", per_class=2, limit=15)
    assert models[0].environments.labels[rows].tolist() == [*range(10), *range(5)]
    comparison = attention.compare_attention(models[:2], rows)
    assert [str(model.method) for model in comparison.models] == ["ERM", "DAT"]
    assert comparison.unseen == "scene2" and comparison.area == pytest.approx(0.19, abs=0.01)
    for model, trained in zip(comparison.models, models, strict=False):
        x = trained.environments.normalise(trained.environments.images[rows])
        assert model.attention.predicted.tolist() == trained.algorithm.predict(x).argmax(1).tolist()
        assert model.inside is not None and model.images == 1250 and 0 < model.inside.mean < 100
    assert len(heatmap_grid(comparison).axes) == 15 * 3


def test_networks_that_flatten_their_maps_get_the_method_that_shows_something(folders: list[Path]) -> None:
    models = attention.restore_all(folders[:1])
    rows = attention.sample_rows(models[0].environments, "scene2", 1, 3)
    usual = attention.compare_attention(models, rows)
    assert usual.method == attention.usual_method(models) == "hires-cam"
    assert usual.models[0].inside is not None and usual.models[0].inside.n == 1250, "heat on every image"
    assert attention.compare_attention(models, rows, method="grad-cam").method == "grad-cam"
    models[0].algorithm.network = torch.nn.Sequential(torch.nn.Conv2d(3, 10, 3), torch.nn.AdaptiveAvgPool2d(1))
    assert attention.usual_method(models) == "grad-cam"


def test_every_member_of_an_ensemble_counts(folders: list[Path]) -> None:
    trained = restore(folders[2])
    images = trained.environments.images[:3]
    model = attention.model_attention(trained, images, "scene2", None, "grad-cam")
    assert model.layers == tuple(f"network.members.{i}.features.5" for i in range(3))
    first = attention.model_attention(trained, images, "scene2", "network.members.0.features.5", "grad-cam")
    assert not torch.allclose(model.attention.heat, first.attention.heat)


def test_runs_that_cannot_be_compared(folders: list[Path], tmp_path: Path) -> None:
    other = train(plan_run("BackgroundDigits", "ERM", "scene1", steps=1), tmp_path, device="cpu").folder
    with pytest.raises(UserError, match="no domain is unseen by all"):
        attention.common_unseen(attention.restore_all([folders[0], other]))
    wide = train(plan_run("ColoredMNIST-embedded", "ERM", 2, steps=1, network="mlp"), tmp_path, device="cpu").folder
    with pytest.raises(UserError, match="give runs on the same data"):
        attention.restore_all([folders[0], wide])


def test_the_command_writes_a_grid(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = command(capsys, "cam", folders[0].parent, "--limit", 2, "--json")
    told = json.loads(out)
    assert status == 0 and Path(told["picture"]).read_bytes().startswith(b"\x89PNG")
    assert [run["method"] for run in told["runs"]] == ["ERM", "DAT", "EnsembleUAT"] and told["method"] == "hires-cam"
    assert all(run["images_judged"] == 1250 and len(run["predicted"]) == 2 for run in told["runs"])
    for name in ("a.png", "b.png"):
        Image.fromarray(np.full((40, 50), 128, np.uint8)).save(tmp_path / name)
    own = ("--images", "a.png", "--images", "b.png")
    status, out, _ = command(capsys, "cam", *folders[:2], *own, "--out", "grid.pdf")
    assert status == 0 and (tmp_path / "grid.pdf").read_bytes().startswith(b"%PDF") and "grid.pdf" in out


def test_a_model_trained_on_every_domain_looks_at_given_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.full((40, 50), 128, np.uint8)).save(tmp_path / "a.png")
    small = {"batch_size": 4}
    train(plan_run("BackgroundDigits", "ERM", (), steps=1, hparams=small), tmp_path / "model", device="cpu")
    status, out, _ = command(capsys, "cam", "model", "--images", "a.png", "--json")
    told = json.loads(out)
    assert status == 0 and told["unseen"] is None and [run["method"] for run in told["runs"]] == ["ERM"]
    status, _, err = command(capsys, "cam", "model")
    assert status == 2 and err.count("\n") == 1 and err.endswith("or images of your own (--images)\n")
    train(plan_run("BackgroundDigits", "DAT", (), steps=1, hparams=small), tmp_path / "model", device="cpu")
    status, _, err = command(capsys, "cam", "model", "--images", "a.png")
    assert status == 2 and "no run there leaves a domain out: name one run's folder" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "grid.gif"], "ends in .png, .pdf or .svg"),
        (["--images", "no.png"], "no.png is no readable image (No such file or directory)"),
        (["--images", __file__], "no readable image"),
        (["--layer", "nowhere"], "unknown layer"),
    ],
)
def test_mistakes_are_one_line(
    folders: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = command(capsys, "cam", folders[0], *arguments)
    assert status == 2 and not out and words in err and len(err.strip().splitlines()) == 1
