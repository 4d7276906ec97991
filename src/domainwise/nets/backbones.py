"""Backbones of other libraries as feature networks: built from their configuration, pooled to one vector per image.

Dropout and stochastic depth inside a backbone are off (the hyper-parameter `dropout` comes after the features), and a
BatchNorm always uses its stored statistics. So the features of a sample depend on that sample alone.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from domainwise.core.errors import UserError, one_line
from domainwise.core.weights_file import load_weights
from domainwise.nets import hub
from domainwise.nets.parts import blocks
from domainwise.protocol.network_names import HubName

POOLED = {
    "class": "class token",
    "mean": "mean of patches",
    "both": "class token and mean of patches",
    "pooler": "the model's own pooling",
}


def named(network: str) -> "Callable[[tuple[int, ...]], Backbone]":
    """What makes the backbone of this name for inputs of a shape, with fresh weights."""
    return lambda shape: from_configuration(hub.configuration(network), shape, str(HubName.parse(network)))


def from_configuration(configuration: Mapping[str, Any], shape: tuple[int, ...], name: str) -> "Backbone":
    """The backbone of a configuration (see `hub.configuration`), with fresh weights."""
    kind: type[Backbone]
    if configuration.get("library") == "timm":
        from domainwise.nets.timm_backbone import TimmBackbone as kind
    else:
        from domainwise.nets.transformers_backbone import TransformersBackbone as kind
    return kind(configuration["config"], shape, str(configuration.get("pooling", "")), name)


def describe(network: str, shape: tuple[int, ...]) -> str:
    """What the features of a backbone are for inputs of this shape, in words. Takes no memory for weights."""
    with torch.device("meta"):
        made = named(network)(shape)
    return f"{made.out_features:,} features, {POOLED[made.pooling]}, of images of {shape[-1]} pixels"


class Backbone(nn.Module):
    """A model of another library: images [N, 3, H, W] -> features [N, F].

    The model puts out tokens [N, T, D], the first `prefix` of which are no patches, or maps [N, C, h, w].
    """

    per_sample = True
    model: Any
    usual_pooling: ClassVar[str] = "class"

    def __init__(self, config: Mapping[str, Any], shape: tuple[int, ...], pooling: str, name: str) -> None:
        super().__init__()
        if len(shape) != 3:
            raise UserError(f"{name} needs images [channels, height, width], not inputs of shape {shape}")
        self.name, self.shape = name, shape
        self.prefix, self.grid = 0, (0, 0)
        with torch.device("meta"):
            self.model = self._build(config, pooling)
        self.train()
        self.pooling, unused = self._measure(pooling)
        self.model = self._build(config, self.pooling)
        for unneeded in unused:
            self.model.get_parameter(unneeded).requires_grad_(False)
        self.train()

    def _build(self, config: Mapping[str, Any], pooling: str) -> nn.Module:
        try:
            return self.make(config, pooling)
        except UserError:
            raise
        except Exception as error:  # every architecture checks its configuration in its own way
            raise self._refusal(f"cannot be built as its {hub.CONFIG} says", error) from None

    def _refusal(self, what: str, error: Exception, advice: str = "choose another network") -> UserError:
        reason = one_line(error)
        argument = "image_size" if "image_size" in advice else "network"
        return UserError(f"{self.name} {what} ({reason}): {advice}", argument=argument)

    def make(self, config: Mapping[str, Any], pooling: str) -> nn.Module:
        """The library's model, with fresh weights."""
        raise NotImplementedError

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the model puts out: tokens [N, T, D] or maps [N, C, h, w], and what its own pooling makes of them."""
        raise NotImplementedError

    def load(self, folder: Path) -> None:
        """Copies the weights of a folder into the model; weights that are missing are a UserError."""
        raise NotImplementedError

    def count_prefix(self, tokens: Tensor) -> tuple[int, tuple[int, int]]:
        """How many tokens are no patches, and the rows and columns of those that are."""
        raise NotImplementedError

    def has_class_token(self) -> bool:
        return self.prefix > 0

    def use_plain_attention(self) -> bool:
        """From now on attention is computed by products and a softmax, which can be differentiated twice.

        Returns False, and changes nothing, if the model cannot.
        """
        raise NotImplementedError

    def attentions(self, x: Tensor) -> list[Tensor]:
        """The attention of every block, [N, heads, T, T]; empty where tokens do not all attend to each other."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(*self.outputs(x))

    def pool(self, out: Tensor, own: Tensor | None) -> Tensor:
        """Features [N, F] of what the model puts out."""
        if self.pooling == "pooler":
            assert own is not None
            return own.flatten(1)
        if self.pooling == "mean":
            return self._mean(out)
        first = out[:, 0] if own is None or self.own_is_dense else own
        return first if self.pooling == "class" else torch.cat([first, self._mean(out)], 1)

    own_is_dense = False
    """Whether the model's own pooling is more than a normalised class token."""

    def _mean(self, out: Tensor) -> Tensor:
        return out.mean((2, 3)) if out.ndim == 4 else out[:, self.prefix :].mean(1)

    @torch.enable_grad()
    def _measure(self, pooling: str) -> tuple[str, list[str]]:
        """The pooling, and the parameters that do not influence it; sets feature size, prefix and grid.

        One image passes through a model without memory (the device "meta").
        """
        x = torch.zeros(1, *self.shape, device="meta")
        self.norms: list[str] = []  # of tokens, in the order of a forward pass

        def note(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, inputs: object, output: Any) -> None:  # noqa: ARG001 (a hook's arguments)
                if output.ndim == 3 and output.shape[1] > 1:
                    self.norms.append(f"model.{name}")

            return hook

        try:
            with ExitStack() as stack:
                for name, module in self.model.named_modules():
                    if isinstance(module, nn.LayerNorm):
                        stack.callback(module.register_forward_hook(note(name)).remove)
                out, own = self.outputs(x)
            if out.ndim == 3:
                self.prefix, self.grid = self.count_prefix(out)
            self.pooling = pooling or self._usual(own)
            self._check_pooling(own)
            z = self.pool(out, own)
            parameters = {name: one for name, one in self.model.named_parameters() if one.requires_grad}
            gradients = torch.autograd.grad(z.sum(), list(parameters.values()), allow_unused=True)
        except UserError:
            raise
        except Exception as error:  # every architecture fails in its own way
            height, width = self.shape[1:]
            what = f"cannot read images of {height} x {width} pixels"
            raise self._refusal(what, error, "choose another image_size, or another network") from None
        self.out_features = z.shape[1]
        return self.pooling, [name for name, one in zip(parameters, gradients, strict=True) if one is None]

    def _usual(self, own: Tensor | None) -> str:
        if self.usual_pooling == "class" and self.has_class_token():
            return "class"
        return "mean" if own is None else "pooler"

    def _check_pooling(self, own: Tensor | None) -> None:
        lacking = "" if self.pooling == "mean" else "class token" if not self.has_class_token() else ""
        if self.pooling == "pooler":
            lacking = "pooling of its own" if own is None else ""
        if lacking:
            usual = self._usual(own)
            raise UserError(
                f"{self.name} has no {lacking}: choose +{usual}, or leave out the pooling", argument="network"
            )

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self

    def as_maps(self, out: Tensor) -> Tensor:
        """The output of a block as maps [N, C, h, w]: without class token, patches where they lie in the image."""
        if out.ndim == 4:
            return self.channels_first(out)
        count = out.shape[1]
        if count == self.prefix + self.grid[0] * self.grid[1]:
            prefix, rows, columns = self.prefix, *self.grid
        else:  # a later stage, of fewer patches
            prefix, rows = 0, max(1, round(count**0.5))
            columns = count // rows
            if rows * columns != count:
                raise UserError(f"{self.name}: {count} tokens are no map: choose a block", argument="layer")
        return out[:, prefix:].transpose(1, 2).unflatten(2, (rows, columns))

    @torch.no_grad()
    def rollout(self, x: Tensor) -> Tensor | None:
        """How far the features look at each patch, [N, 1, h, w]: the product of (A + I) / 2 over all blocks."""
        attentions = [attention.mean(1) for attention in self.attentions(x)]
        if not attentions:
            return None
        same = torch.eye(attentions[0].shape[1], device=x.device, dtype=attentions[0].dtype)
        product = (attentions[0] + same) / 2
        for attention in attentions[1:]:
            product = (attention + same) / 2 @ product
        rows = product[:, :1] if self.prefix and self.pooling != "mean" else product[:, self.prefix :]
        return rows.mean(1)[:, self.prefix :].unflatten(1, self.grid).unsqueeze(1)

    @property
    def map_layer(self) -> str:
        """The layer whose output shows best where the features come from.

        Of tokens it is a normalisation: behind the last block, or before its attention where the features are those of
        the class token, which depend on the patches no more behind the block.
        """
        last = list(self.blocks())[-1]
        inside = [name for name in self.norms if name.startswith(f"{last}.")]
        if self.prefix and self.pooling != "mean":
            return inside[0] if inside else last
        return self.norms[-1] if self.norms and self.norms[-1] not in inside else last

    def blocks(self) -> dict[str, nn.Module]:
        """The blocks of the model, first to last."""
        return {f"model.{name}": block for name, block in blocks(self.model).items()}

    def stages(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The outputs of the blocks, [N, channels, ...], and the features."""
        outputs: list[Tensor] = []

        def keep(module: nn.Module, inputs: object, output: Any) -> None:  # noqa: ARG001 (a hook's arguments)
            out = first_tensor(output)
            outputs.append(out.transpose(1, 2) if out.ndim == 3 else self.channels_first(out))

        with ExitStack() as stack:
            for block in self.blocks().values():
                stack.callback(block.register_forward_hook(keep).remove)
            z = Backbone.forward(self, x)
        return outputs, z

    def channels_first(self, out: Tensor) -> Tensor:
        """Maps [N, C, h, w] as the model's blocks put them out."""
        return out


def first_tensor(output: Any) -> Tensor:
    """The output of a block, some of which put out a tuple."""
    out: Tensor = output[0] if isinstance(output, (tuple, list)) else output
    return out


def weights_in(folder: Path) -> dict[str, Tensor]:
    """The tensors of all weights files of a folder; a damaged file is a UserError."""
    tensors: dict[str, Tensor] = {}
    for file in hub.weights_files(folder):
        tensors |= load_weights(file, "fetch the model again, or restore the file")
    return tensors
