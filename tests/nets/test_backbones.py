"""Backbones of transformers: their features are the package's own, and every part of them can be trained or frozen."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import domainwise as dw
from domainwise.core.errors import UserError
from domainwise.nets import NETWORKS, hub
from domainwise.nets.backbones import Backbone
from domainwise.nets.loading import start_from
from domainwise.nets.parts import attention_names, blocks, rate_factors, train_only
from domainwise.nets.stages import stages
from domainwise.nets.weights import planned
from hub_models import CLASS_TOKEN, FAMILIES, MEAN, SIZE, STD, TRANSFORMERS, configuration

Backbones = Callable[[str], Path]


def load(folder: Path, pooling: str = "", size: int = SIZE) -> Backbone:
    network = f"hf:{folder}{pooling}"
    made = NETWORKS[network]((3, size, size))
    start_from(made, planned(network))
    assert isinstance(made, Backbone)
    return made.eval()


def noise(size: int = SIZE, count: int = 4) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_those_of_the_package(family: str, backbone: Backbones) -> None:
    """From uint8 images: also the normalisation is the model's."""
    from transformers import AutoModel

    images = np.random.default_rng(0).integers(0, 256, (6, 3, SIZE, SIZE), np.uint8)
    data = dw.Environments.from_arrays({"a": (images, np.arange(6) % 2)}, name=f"noise for {family}")
    ours = dw.extract_features(data, f"hf:{backbone(family)}", device="cpu").images
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    with torch.no_grad():
        own = AutoModel.from_pretrained(backbone(family)).eval()(
            pixel_values=(torch.from_numpy(images) / 255 - mean) / std
        )
    expected = own.last_hidden_state[:, 0] if family == "vit" else own.pooler_output.flatten(1)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_pooling_can_be_chosen(family: str, backbone: Backbones) -> None:
    x = noise()
    net = load(backbone(family), "+mean")
    with torch.no_grad():
        out = net.outputs(x)[0]
        prefix = family in CLASS_TOKEN
        mean = out.mean((2, 3)) if out.ndim == 4 else out[:, prefix:].mean(1)
        torch.testing.assert_close(net(x), mean)
        if prefix:
            both = load(backbone(family), "+both")(x)
            torch.testing.assert_close(both, torch.cat([load(backbone(family), "+class")(x), mean], 1))
        else:
            with pytest.raises(UserError, match="no class token"):
                load(backbone(family), "+both")


def test_attention_has_no_mask_while_a_graph_is_recorded(backbone: Backbones, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of transformers would make one then, with which the fast kernels do not apply."""
    masks = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def spy(*given: Any, attn_mask: Tensor | None = None, **further: Any) -> Tensor:
        masks.append(attn_mask)
        return attend(*given, attn_mask=attn_mask, **further)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    load(backbone("vit"))(noise())
    assert masks and masks == [None] * len(masks)


@pytest.mark.parametrize("family", FAMILIES)
def test_features_of_a_sample_depend_on_it_alone_in_training_too(family: str, backbone: Backbones) -> None:
    net = load(backbone(family)).train()
    x = noise()
    torch.testing.assert_close(net(x)[:2], net(x[:2]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(net(x), net.eval()(x), rtol=1e-5, atol=1e-6)
    assert net.per_sample


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_that_learns_influences_the_features(family: str, backbone: Backbones) -> None:
    for pooling in ("", "+mean"):
        net = load(backbone(family), pooling)
        learning = [parameter for parameter in net.parameters() if parameter.requires_grad]
        assert all(gradient is not None for gradient in torch.autograd.grad(net(noise()).sum(), learning))


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_are_blocks_and_end_in_the_features(family: str, backbone: Backbones) -> None:
    net = load(backbone(family))
    outputs, z = stages(net, noise())
    assert len(outputs) == len(blocks(net)) >= 2 and outputs[-1].shape[1] == 16
    torch.testing.assert_close(z, net(noise()))


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_attention_alone_trains(family: str, backbone: Backbones) -> None:
    net = load(backbone(family))
    train_only(net, "attention", family)
    learning = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    assert learning == attention_names(net)
    assert any("q_proj" in name for name in learning) and not any("mlp" in name or "norm" in name for name in learning)


def test_networks_without_attention_say_so(backbone: Backbones) -> None:
    for network in (load(backbone("resnet")), NETWORKS["resnet18-scratch"]((3, SIZE, SIZE))):
        with pytest.raises(UserError, match="no attention layers"):
            train_only(network, "attention", "this one")
    with pytest.raises(UserError, match="has 2 blocks, not 5"):
        train_only(load(backbone("vit")), "last:5", "this one")


def test_the_last_blocks_train_with_what_follows_them(backbone: Backbones) -> None:
    net = load(backbone("vit"))
    train_only(net, "last:1", "vit")
    learning = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    assert learning == {
        name for name, _ in net.named_parameters() if name.startswith(("model.layers.1.", "model.layernorm."))
    }


def test_rates_decay_from_the_last_block_to_the_first(backbone: Backbones) -> None:
    net = load(backbone("vit"))
    factors = rate_factors(net, 0.5, "vit")
    by_name = {name: factors[parameter] for name, parameter in net.named_parameters()}
    for beginning, factor in (("embeddings", 0.125), ("layers.0", 0.25), ("layers.1", 0.5), ("layernorm", 1.0)):
        found = {value for name, value in by_name.items() if name.startswith(f"model.{beginning}.")}
        assert found == {factor}, beginning


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "resnet"])
def test_images_of_another_size(family: str, backbone: Backbones) -> None:
    assert load(backbone(family), size=24)(noise(24)).shape == (4, 16)


def test_a_size_that_does_not_fit_is_an_error_before_training(backbone: Backbones) -> None:
    with pytest.raises(UserError, match=r"cannot read images of 2 x 2 pixels .* choose another image_size"):
        load(backbone("vit"), size=2)


def test_the_image_tower_of_a_model_of_images_and_texts(tmp_path: Path) -> None:
    from transformers import CLIPConfig, CLIPModel

    text = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 9}
    config = CLIPConfig(text_config=text, vision_config=configuration("clip").to_dict(), projection_dim=8)
    whole = CLIPModel(config).eval()
    whole.save_pretrained(tmp_path)
    expected = whole.vision_model(pixel_values=noise()).pooler_output
    torch.testing.assert_close(load(tmp_path)(noise()), expected)


def test_weights_that_are_missing_are_an_error(backbone: Backbones, tmp_path: Path) -> None:
    folder = shutil.copytree(backbone("vit"), tmp_path / "vit")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"lacks \d+ weights"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": "x"}, "cannot be built as its config.json says (Validation error for field 'hidden_size'"),
        ({"hidden_size": -16}, "cannot be built as its config.json says"),
        ({"hidden_size": 10**9}, "cannot be built as its config.json says"),
        ({"model_type": ["vit"]}, "cannot be built as its config.json says (unhashable type: 'list')"),
        ({"hidden_act": "none such"}, "cannot be built as its config.json says"),
        ({"intermediate_size": 33}, "layers.0.mlp.fc1.bias is [32], not [33]"),
    ],
)
def test_a_configuration_that_cannot_be_is_one_line(
    changes: dict[str, object], reason: str, backbone: Backbones, tmp_path: Path
) -> None:
    folder = shutil.copytree(backbone("vit"), tmp_path / "vit")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UserError) as error:
        load(folder)
    assert reason in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "preprocessor_config.json"])
def test_damaged_files_are_one_line_or_make_no_difference(file: str, backbone: Backbones, tmp_path: Path) -> None:
    folder = shutil.copytree(backbone("vit"), tmp_path / "vit")
    whole = (folder / file).read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"\xff" * 9 + whole[9:], whole[:-1] + b"\xff"):
        (folder / file).write_bytes(damaged)
        hub._image_facts.cache_clear()
        try:
            load(folder), hub.image_facts(f"hf:{folder}")
        except UserError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_plain_attention_gives_the_same_and_can_be_differentiated_twice(family: str, backbone: Backbones) -> None:
    net, x = load(backbone(family)), noise()
    expected = net(x)
    net.use_plain_attention()
    x.requires_grad_()
    z = net(x)
    torch.testing.assert_close(z, expected, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(z.square().sum(), x, create_graph=True)
    assert torch.autograd.grad(gradient.square().sum(), x)[0].abs().sum() > 0


@pytest.mark.parametrize("family", CLASS_TOKEN)
def test_attention_is_a_distribution_over_tokens(family: str, backbone: Backbones) -> None:
    net = load(backbone(family))
    attentions = net.attentions(noise())
    assert [one.shape for one in attentions] == [(4, 2, 17, 17)] * 2
    torch.testing.assert_close(attentions[0].sum(-1), torch.ones(4, 2, 17))
    rollout = net.rollout(noise())
    assert rollout is not None and rollout.shape == (4, 1, 4, 4)
    a, b = ((one.mean(1) + torch.eye(17)) / 2 for one in attentions)
    torch.testing.assert_close(rollout.flatten(1), (b @ a)[:, 0, 1:])
