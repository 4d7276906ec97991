"""Backbones of timm, where it can be imported: its import needs a torchvision that fits the installed torch.

It is no part of the extra `dev`: beside the CPU build of torch, torchvision's usual wheel does not load, and then
transformers, which imports it where it is installed, does not either.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model

import domainwise as dw
from domainwise.core.errors import UserError
from domainwise.nets import NETWORKS
from domainwise.nets.backbones import Backbone
from domainwise.nets.loading import start_from
from domainwise.nets.parts import attention_names
from domainwise.nets.weights import planned
from hub_models import SIZE

SMALL = {"img_size": SIZE, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": SMALL,
    "vit_small_patch14_reg4_dinov2": SMALL,
    "vit_base_patch16_siglip_224": SMALL,
    "beit_base_patch16_224": SMALL,
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)},
    "resnet10t": {},
}


@pytest.fixture(scope="module")
def timm() -> Any:
    """The library; operators of torchvision that a build for another torch lacks are declared first."""
    lacking = []
    if importlib.util.find_spec("torchvision") is not None:
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                lacking.append(torch.library.Library("torchvision", "FRAGMENT"))
                lacking[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        import timm
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"timm is no part of the extra dev, which a torchvision for another torch would break: {error}")
    return timm


def pixels(architecture: str) -> int:
    return SIZE if MODELS[architecture] is SMALL else 2 * SIZE


def save(timm: Any, architecture: str, folder: Path) -> Any:
    """A tiny random model in the format of timm's repositories."""
    torch.manual_seed(0)
    arguments = MODELS[architecture]
    model = timm.create_model(architecture, num_classes=5, **arguments).eval()
    size = pixels(architecture)
    images = {"input_size": [3, size, size], "mean": [0.5] * 3, "std": [0.25] * 3}
    config = {"architecture": architecture, "model_args": arguments, "pretrained_cfg": images}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_model(model, str(folder / "model.safetensors"))
    return model


@pytest.mark.parametrize("architecture", MODELS)
def test_features_are_those_of_the_package(architecture: str, timm: Any, tmp_path: Path) -> None:
    model = save(timm, architecture, tmp_path)
    name = f"timm:{tmp_path}"
    size = pixels(architecture)
    net = NETWORKS[name]((3, size, size))
    start_from(net, planned(name))
    assert isinstance(net, Backbone)
    x = torch.randn(3, 3, size, size)
    expected = model.forward_head(model.forward_features(x), pre_logits=True)
    torch.testing.assert_close(net.eval()(x), expected, rtol=1e-6, atol=1e-6)
    outputs, z = net.stages(x)
    assert len(outputs) == len(net.blocks()) >= 2
    torch.testing.assert_close(z, expected, rtol=1e-6, atol=1e-6)
    if MODELS[architecture] is SMALL:
        assert attention_names(net) and len(net.attentions(x)) == 2
        rollout = net.rollout(x)
        assert rollout is not None and rollout.shape == (3, 1, 4, 4)
    else:
        with pytest.raises(UserError, match="no class token"):
            NETWORKS[f"{name}+class"]((3, size, size))


@pytest.mark.parametrize("arguments", [{"foo": 3}, {"embed_dim": "x"}, [3]])
def test_arguments_that_cannot_be_are_one_line(arguments: object, timm: Any, tmp_path: Path) -> None:
    save(timm, "vit_tiny_patch16_224", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"cannot be built as its config\.json says") as error:
        NETWORKS[f"timm:{tmp_path}"]((3, SIZE, SIZE))
    assert "\n" not in str(error.value)


def test_a_model_of_timm_trains_and_is_loaded_without_its_folder(timm: Any, tmp_path: Path) -> None:
    save(timm, "vit_tiny_patch16_224", tmp_path / "tiny")
    images = torch.randint(0, 256, (20, 3, SIZE, SIZE), dtype=torch.uint8)
    data = dw.Environments.from_arrays({d: (images, torch.arange(20) % 2) for d in "ab"}, name="noise")
    model = dw.fit(data, "DAT", network=f"timm:{tmp_path / 'tiny'}", steps=2, hparams={"batch_size": 4}, device="cpu")
    expected = model.predict_proba(images)
    model.save(tmp_path / "model")
    (tmp_path / "tiny").rename(tmp_path / "elsewhere")
    assert (dw.load_model(tmp_path / "model", device="cpu").predict_proba(images) == expected).all()
    model.export(tmp_path / "model.pt2")
