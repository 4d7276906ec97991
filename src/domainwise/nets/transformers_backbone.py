"""Backbones of transformers: any model of it that maps pixels to tokens or maps, without its head.

Attention is computed by `scaled_dot_product_attention` where the model knows it. Of a model of images and texts (CLIP,
SigLIP) the image tower is used. No code of a repository is executed: only classes of the installed transformers.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from domainwise.core.errors import UserError
from domainwise.nets.backbones import Backbone, weights_in
from domainwise.nets.hub import import_transformers

ATTENTION = "domainwise_sdpa"
"""What `scaled_dot_product_attention` is called among the attention functions of transformers."""


class TransformersBackbone(Backbone):
    """A model of transformers as a feature network."""

    def make(self, config: Mapping[str, Any], pooling: str) -> nn.Module:
        transformers = import_transformers()
        described = self._described(config)
        if type(described) not in transformers.MODEL_MAPPING:
            raise UserError(f"{self.name}: transformers has no model for it: choose another", argument="network")
        with _quiet():
            kind = transformers.MODEL_MAPPING[type(described)]
            kind = kind[0] if isinstance(kind, (tuple, list)) else kind
            if getattr(kind, "main_input_name", "") != "pixel_values":
                raise UserError(f"{self.name} does not read images: choose an image model", argument="network")
            reads = inspect.signature(kind.forward).parameters.values()
            inputs = [one.name for one in reads if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
            if lacking := [name for name in inputs if name not in ("self", "pixel_values")]:
                raise UserError(
                    f"{self.name} needs more than images ({', '.join(lacking)}): choose another network",
                    argument="network",
                )
            self.own_is_dense = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
            further = {"add_pooling_layer": pooling == "pooler"} if self.own_is_dense else {}
            make = partial(transformers.AutoModel.from_config, described, **further)
            model: nn.Module = _with_fast_attention(transformers, make) if kind._supports_sdpa else make()
        size = getattr(described, "image_size", None)
        own = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        known = inspect.signature(model.forward).parameters
        resized = own != self.shape[1:] and "interpolate_pos_encoding" in known
        self.options: dict[str, Any] = {"interpolate_pos_encoding": True} if resized else {}
        self.masks = "noise" in known
        return model

    def _described(self, config: Mapping[str, Any]) -> Any:
        """The configuration of the image model, without dropout and without masks."""
        from transformers import CONFIG_MAPPING

        kind = config.get("model_type")
        if kind not in CONFIG_MAPPING:
            raise UserError(
                f"{self.name}: its {kind!r} is unknown to the installed transformers, and no other code is executed",
                argument="network",
            )
        described = CONFIG_MAPPING[kind].from_dict(dict(config))
        described = getattr(described, "vision_config", described)
        for name, value in described.to_dict().items():
            if ("drop" in name or name == "mask_ratio") and isinstance(value, float):
                setattr(described, name, 0.0)
        return described

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        made = self.model(pixel_values=x, **self._further_inputs(x))
        out = getattr(made, "last_hidden_state", None)
        if out is None and (maps := getattr(made, "feature_maps", None)):
            out = maps[-1]
        if out is None:
            raise UserError(f"{self.name} puts out no features of images: choose another network", argument="network")
        return out, getattr(made, "pooler_output", None)

    def _further_inputs(self, x: Tensor) -> dict[str, Any]:
        if not self.masks:
            return self.options
        rows, columns = self._patches()  # a masked autoencoder sorts them by noise
        return {**self.options, "noise": torch.arange(rows * columns, device=x.device).expand(x.shape[0], -1)}

    def _patches(self) -> tuple[int, int]:
        """Rows and columns of patches in an image."""
        patch = getattr(self.model.config, "patch_size", None)
        height, width = patch if isinstance(patch, (tuple, list)) else (patch, patch)
        return self.shape[1] // (height or 1), self.shape[2] // (width or 1)

    def count_prefix(self, tokens: Tensor) -> tuple[int, tuple[int, int]]:
        rows, columns = self._patches()
        prefix = tokens.shape[1] - rows * columns
        return (prefix, (rows, columns)) if prefix >= 0 else (0, (0, 0))

    def use_plain_attention(self) -> bool:
        used = self.model.config._attn_implementation
        if used == ATTENTION:
            self.model.set_attn_implementation("eager")
        return used != "sdpa"

    @torch.no_grad()
    def attentions(self, x: Tensor) -> list[Tensor]:
        if "sdpa" not in (used := str(self.model.config._attn_implementation)) and used != "eager":
            return []
        self.model.set_attn_implementation("eager")
        try:
            made = self.model(pixel_values=x, output_attentions=True, **self._further_inputs(x))
        finally:
            self.model.set_attn_implementation(used)
        count = self.prefix + self.grid[0] * self.grid[1]
        attentions = [one for one in getattr(made, "attentions", None) or () if one is not None]
        return attentions if attentions and all(one.shape[::2] == (len(x), count) for one in attentions) else []

    def load(self, folder: Path) -> None:
        further = {"add_pooling_layer": self.pooling == "pooler"} if self.own_is_dense else {}
        tensors = weights_in(folder)
        try:
            with _quiet():
                loaded, info = type(self.model).from_pretrained(
                    None,
                    config=self.model.config,
                    state_dict=tensors,
                    ignore_mismatched_sizes=True,
                    output_loading_info=True,
                    **further,
                )
        except Exception as error:  # every architecture renames its weights in its own way
            raise self._refusal(f"cannot be filled with the weights in {folder}", error) from None
        for name, given, wanted in sorted(info["mismatched_keys"]):
            raise UserError(
                f"the weights in {folder} do not fit {self.name}: {name} is {list(given)}, not {list(wanted)}",
                argument="network",
            )
        if missing := sorted(info["missing_keys"]):
            raise UserError(
                f"{folder} lacks {len(missing)} weights of {self.name}, e.g. {missing[0]}", argument="network"
            )
        self.model.load_state_dict(loaded.state_dict())


def _with_fast_attention(transformers: Any, make: Callable[..., nn.Module]) -> nn.Module:
    """A model that attends by `scaled_dot_product_attention`; as far as it can, where a part of it has no attention.

    Images have no mask, but transformers makes one while a CUDA graph is recorded, which rules out the fast kernels. It
    makes none for attention under a name of our own, which some models do not look up.
    """
    transformers.AttentionInterface.register(ATTENTION, transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"])
    for name in (ATTENTION, "sdpa"):
        try:
            return make(attn_implementation=name)
        except (KeyError, ValueError):
            continue
    return make(attn_implementation="eager")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences messages of transformers about packages and weights that are not needed here, and its progress bars."""
    log = logging.getLogger("transformers")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        from transformers.utils import logging as bars

        shown = bars.is_progress_bar_enabled()
        bars.disable_progress_bar()
        try:
            yield
        finally:
            if shown:
                bars.enable_progress_bar()
    finally:
        log.setLevel(level)
