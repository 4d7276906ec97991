"""Tiny random models of transformers, one of each family, saved as folders as `save_pretrained` does."""

import json
from pathlib import Path
from typing import Any

import torch

SIZE = 16
MEAN, STD = [0.5, 0.4, 0.3], [0.25, 0.2, 0.3]
FAMILIES = ("dinov2", "vit", "clip", "siglip", "convnext", "swin", "resnet")
"""Each with 16 features."""
UNUSUAL = ("data2vec", "mae", "hgnet")
"""Attention that is looked up by names of its own, patches that are masked and shuffled, and no last hidden state."""
CLASS_TOKEN = ("dinov2", "vit", "clip")
TRANSFORMERS = ("dinov2", "vit", "clip", "siglip", "swin")


def configuration(family: str) -> Any:
    """The configuration of a tiny model of a family."""
    import transformers as t

    flat: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "image_size": SIZE,
        "patch_size": 4,
    }
    made = {
        "dinov2": lambda: t.Dinov2Config(**flat, mlp_ratio=2),
        "vit": lambda: t.ViTConfig(**flat, hidden_dropout_prob=0.1),
        "clip": lambda: t.CLIPVisionConfig(**flat, projection_dim=8),
        "siglip": lambda: t.SiglipVisionConfig(**flat),
        "convnext": lambda: t.ConvNextConfig(
            num_stages=2, hidden_sizes=[8, 16], depths=[1, 1], image_size=SIZE, patch_size=2
        ),
        "swin": lambda: t.SwinConfig(
            embed_dim=8, depths=[1, 2], num_heads=[1, 2], window_size=2, image_size=SIZE, patch_size=2
        ),
        "resnet": lambda: t.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", downsample_in_first_stage=False
        ),
        "data2vec": lambda: t.Data2VecVisionConfig(**flat),
        "mae": lambda: t.ViTMAEConfig(**flat),
        "hgnet": lambda: t.HGNetV2Config(
            embedding_size=8,
            depths=[1, 1],
            hidden_sizes=[8, 16],
            stem_channels=[3, 4, 8],
            stage_in_channels=[8, 8],
            stage_mid_channels=[4, 4],
            stage_out_channels=[8, 16],
            stage_num_blocks=[1, 1],
            stage_downsample=[False, True],
            stage_light_block=[False, False],
            stage_kernel_size=[3, 3],
            stage_numb_of_layers=[1, 1],
        ),
    }
    return made[family]()


def save_model(family: str, folder: Path, *, seed: int = 0) -> Path:
    """Saves a tiny random model of a family with the configuration of its processor."""
    from transformers import AutoModel

    torch.manual_seed(seed)
    model = AutoModel.from_config(configuration(family))
    for name, buffer in model.named_buffers():  # a BatchNorm that has seen something
        if name.endswith("running_mean"):
            buffer.normal_()
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    model.save_pretrained(folder)
    processor = {"image_mean": MEAN, "image_std": STD, "size": {"height": SIZE, "width": SIZE}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder
