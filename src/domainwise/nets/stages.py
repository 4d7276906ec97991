"""The outputs of a network's stages: the layers at which a network can be compared with its start."""

from torch import Tensor, nn


def stages(features: nn.Module, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """The outputs of the stages of a feature network, [N, channels, ...] each, and its features [N, F].

    A network names its stages by a method `stages(x)` that returns both. Those of a plain nn.Sequential end where its
    next layer with weights begins. Any other network has one stage: its features.
    """
    method = getattr(features, "stages", None)
    if method is not None:
        named: tuple[list[Tensor], Tensor] = method(x)
        return named
    if not isinstance(features, nn.Sequential) or type(features).forward is not nn.Sequential.forward:
        z: Tensor = features(x)
        return [z], z
    outputs: list[Tensor] = []
    begun = False
    for layer in features:
        has_weights = next(layer.parameters(), None) is not None
        if has_weights and begun:
            outputs.append(x)
        begun = begun or has_weights
        x = layer(x)
    return [*outputs, x], x
