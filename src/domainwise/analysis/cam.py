"""Grad-CAM: where in the image a network finds its class; and attention roll-out: where a transformer looks at all.

    grad-cam     heat = ReLU(sum_k a_k A_k),  a_k = mean over positions of d logit_c / d A_k
    hires-cam    heat = ReLU(sum_k d logit_c / d A_k  A_k)
    rollout      heat = the class token's row of prod_l (A_l + I) / 2,  A_l = mean attention of the heads in block l

A_k are the maps of one layer; the heat is enlarged bilinearly to the image. The two are equal where a network
averages its last maps over positions. Where it flattens them, a_k mixes positions that the classifier weighs
differently, and only the second says what each contributes.

In a vision transformer, A_k are a component of the patches' tokens, laid out as in the image, behind the last block
that still influences the features. Roll-out is the same for every class; without a class token it is the mean row.

Grad-CAM: Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391. HiResCAM: Draelos and Carin 2020,
https://arxiv.org/abs/2011.08891. Roll-out: Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.core.errors import UserError, unknown
from domainwise.nets.backbones import Backbone, first_tensor
from domainwise.nets.modes import evaluating

METHODS = ("grad-cam", "hires-cam", "rollout")
Predict = Callable[[Tensor], Tensor]
"""Inputs [N, ...] -> logits [N, classes]."""
AsMaps = Callable[[Tensor], Tensor]
"""The output of a layer, tokens [N, T, D] or maps -> maps [N, D, h, w]."""


@dataclass(frozen=True)
class Attention:
    """The heat [N, H, W] (not negative, not scaled) that `classes` [N] got, and what the network answered."""

    heat: Tensor
    classes: Tensor
    predicted: Tensor

    def share_inside(self, masks: Tensor) -> Tensor:
        """Per image, the part of the heat inside a mask [N, H, W]; NaN where there is no heat at all."""
        heat = self.heat.double()
        return (heat * masks).sum((1, 2)) / heat.sum((1, 2))


def grad_cam(
    model: nn.Module,
    x: Tensor,
    classes: Tensor | None = None,
    *,
    layer: str | Sequence[str] | None = None,
    predict: Predict | None = None,
    method: str = "grad-cam",
    batch_size: int = 64,
) -> Attention:
    """Grad-CAM of any module on inputs [N, C, H, W], for the classes given, or else for those it predicts.

    `layer` names a submodule (or several of equal map size, whose maps count as those of one layer); by default it is
    the last that puts out maps (of a transformer, tokens). `predict` is how to get logits where it is not `model(x)`.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if method == "rollout":
        return _rollout(model, x, classes, predict or model, batch_size)
    if layer is None:
        layer = last_map(model, x, predict)
    names = [layer] if isinstance(layer, str) else list(layer)
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise unknown("layer", name, [name for name in modules if name])
    parts = []
    as_maps = [_as_maps(model, name) for name in names]
    with evaluating(model), _kept_maps([modules[name] for name in names], as_maps) as maps:
        for start in range(0, len(x), batch_size):
            chunk = slice(start, start + batch_size)
            chunk_classes = None if classes is None else classes[chunk]
            weighted, predicted = _weighted_maps(
                predict or model, maps, names, as_maps, x[chunk], chunk_classes, method
            )
            heat = F.interpolate(weighted.relu(), x.shape[2:], mode="bilinear", align_corners=False)
            parts.append((heat[:, 0], predicted))
    heat, predicted = (torch.cat(part) for part in zip(*parts, strict=True))
    return Attention(heat, predicted if classes is None else classes, predicted)


def last_map(model: nn.Module, x: Tensor, predict: Predict | None = None) -> str:
    """The name of the last module, in the order of a forward pass, that puts out maps [N, K, h, w] with h w > 1."""
    for path, module in model.named_modules():
        if isinstance(module, Backbone):
            return f"{path}.{module.map_layer}".lstrip(".")
    last: list[str] = []

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:  # noqa: ARG001 (a hook's arguments)
            if isinstance(output, Tensor) and output.ndim == 4 and output[0, 0].numel() > 1:
                last[:] = [name]

        return hook

    hooks = ((module, note(name)) for name, module in model.named_modules() if name)
    with forward_hooks(hooks), evaluating(model), torch.no_grad():
        (predict or model)(x[:1])
    if not last:
        raise UserError(
            f"{type(model).__name__} has no layer that puts out maps [N, channels, height, width], so there is no "
            "heatmap to draw: use a convolutional network"
        )
    return last[0]


@contextmanager
def forward_hooks(hooks: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Context manager: (module, hook) pairs are registered within it and removed at its end."""
    with ExitStack() as stack:
        for module, hook in hooks:
            stack.callback(module.register_forward_hook(hook).remove)
        yield


@contextmanager
def _kept_maps(modules: Sequence[nn.Module], as_maps: Sequence[AsMaps | None]) -> Iterator[dict[int, Tensor]]:
    """Within it, the modules' latest outputs, from which gradients can be taken: maps, or what `as_maps` can turn."""
    maps: dict[int, Tensor] = {}

    def keep(number: int) -> Callable[..., object]:
        def hook(module: nn.Module, inputs: object, output: object) -> object:  # noqa: ARG001 (a hook's arguments)
            first, to_maps = first_tensor(output), as_maps[number]
            if not isinstance(first, Tensor) or (first.ndim != 4 and (to_maps is None or first.ndim != 3)):
                return output
            # a copy: what follows may work in place, which a leaf does not allow
            maps[number] = first.detach().requires_grad_().clone()
            return (maps[number], *output[1:]) if isinstance(output, tuple) else maps[number]

        return hook

    with forward_hooks((module, keep(number)) for number, module in enumerate(modules)):
        yield maps


def _weighted_maps(
    predict: Predict,
    maps: dict[int, Tensor],
    names: Sequence[str],
    as_maps: Sequence[AsMaps | None],
    x: Tensor,
    classes: Tensor | None,
    method: str,
) -> tuple[Tensor, Tensor]:
    """The sum of the maps, weighted by what the class's logit owes to them, [N, 1, h, w]; and the predicted classes."""
    with torch.enable_grad():
        logits = predict(x)
        predicted = logits.argmax(1)
        score = logits.gather(1, (predicted if classes is None else classes)[:, None]).sum()
    for number, name in enumerate(names):
        if number not in maps:
            raise UserError(f"layer {name!r} puts out no maps [N, channels, height, width]: choose a convolutional one")
    gradients = torch.autograd.grad(score, list(maps.values()))
    weighted = []
    for gradient, (number, kept) in zip(gradients, maps.items(), strict=True):
        to_maps = as_maps[number]
        slopes, layer_maps = (gradient, kept) if to_maps is None else (to_maps(gradient), to_maps(kept))
        weights = slopes.mean((2, 3), keepdim=True) if method == "grad-cam" else slopes
        weighted.append((weights.to(x.dtype) * layer_maps.detach().to(x.dtype)).sum(1, keepdim=True))
    return torch.stack(weighted).sum(0), predicted


def _as_maps(model: nn.Module, layer: str) -> AsMaps | None:
    """What turns the output of a layer into maps; None where it puts out maps already."""
    for path, module in model.named_modules():
        if isinstance(module, Backbone) and layer.startswith(f"{path}." if path else ""):
            return module.as_maps
    return None


@torch.no_grad()
def _rollout(model: nn.Module, x: Tensor, classes: Tensor | None, predict: Predict, batch_size: int) -> Attention:
    """Attention roll-out of every backbone in the model, averaged."""
    backbones = [module for module in model.modules() if isinstance(module, Backbone)]
    parts = []
    with evaluating(model):
        for inputs in x.split(batch_size):
            looks = [look for one in backbones if (look := one.rollout(inputs)) is not None]
            if not looks:
                raise UserError(
                    f"{type(model).__name__} has no attention of all patches to each other: rollout is for vision "
                    "transformers such as ViT, DINOv2 and CLIP; choose grad-cam",
                    argument="method",
                )
            heat = F.interpolate(torch.stack(looks).mean(0), x.shape[2:], mode="bilinear", align_corners=False)
            parts.append((heat[:, 0], predict(inputs).argmax(1)))
    heat, predicted = (torch.cat(part) for part in zip(*parts, strict=True))
    return Attention(heat, predicted if classes is None else classes, predicted)
