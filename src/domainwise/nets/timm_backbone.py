"""Backbones of timm, without their classifier."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from domainwise.core.errors import UserError, one_line
from domainwise.nets.backbones import Backbone, weights_in
from domainwise.nets.hub import import_timm


class TimmBackbone(Backbone):
    """A model of timm as a feature network; by default with its own pooling."""

    usual_pooling = "pooler"
    own_is_dense = True

    def make(self, config: Mapping[str, Any], pooling: str) -> nn.Module:  # noqa: ARG002 (its pooling has no switch)
        timm = import_timm()
        architecture = str(config.get("architecture", ""))
        if not timm.is_model(architecture):
            raise UserError(f"{self.name}: timm has no model {architecture!r}", argument="network")
        arguments = dict(config.get("model_args") or {}) | {"num_classes": 0}
        model: Any = timm.create_model(architecture, pretrained=False, **arguments)
        own = dict(config.get("pretrained_cfg") or {}).get("input_size")
        if hasattr(model, "set_input_size") and own is not None and tuple(own) != self.shape:
            model.set_input_size(img_size=self.shape[1:])
        for module in model.modules():
            for name in ("drop_prob", "p"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, 0.0)
        return model

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        raw = self.model.forward_features(x)
        return self.channels_first(raw), self.model.forward_head(raw, pre_logits=True)

    def channels_first(self, out: Tensor) -> Tensor:
        return out.permute(0, 3, 1, 2) if getattr(self.model, "output_fmt", "NCHW") == "NHWC" and out.ndim == 4 else out

    def count_prefix(self, tokens: Tensor) -> tuple[int, tuple[int, int]]:
        prefix = int(getattr(self.model, "num_prefix_tokens", 0))
        grid = getattr(getattr(self.model, "patch_embed", None), "grid_size", None)
        side = round((tokens.shape[1] - prefix) ** 0.5)
        return prefix, tuple(grid) if grid else (side, side)

    def has_class_token(self) -> bool:
        return getattr(self.model, "cls_token", None) is not None

    def use_plain_attention(self) -> bool:
        for module in self.model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = False
        return True

    @torch.no_grad()
    def attentions(self, x: Tensor) -> list[Tensor]:
        attentions: list[Tensor] = []
        fused = {module: module.fused_attn for module in self.model.modules() if hasattr(module, "fused_attn")}
        with ExitStack() as stack:
            for module in fused:
                dropped = getattr(module, "attn_drop", None)
                if isinstance(dropped, nn.Module):
                    hook = dropped.register_forward_hook(lambda _, __, attention: attentions.append(attention))
                    stack.callback(hook.remove)
            self.use_plain_attention()
            try:
                self.model.forward_features(x)
            finally:
                for module, before in fused.items():
                    module.fused_attn = before
        count = self.prefix + self.grid[0] * self.grid[1]
        return attentions if attentions and all(one.shape[::2] == (len(x), count) for one in attentions) else []

    def load(self, folder: Path) -> None:
        tensors = weights_in(folder)
        expected = self.model.state_dict()
        if missing := [name for name in expected if name not in tensors]:
            raise UserError(
                f"{folder} lacks {len(missing)} weights of {self.name}, e.g. {missing[0]}", argument="network"
            )
        try:
            self.model.load_state_dict({name: tensors[name] for name in expected})
        except RuntimeError as error:
            reason = one_line(error)
            raise UserError(f"the weights in {folder} do not fit {self.name}: {reason}", argument="network") from None
