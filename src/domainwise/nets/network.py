"""A network is features and a classifier; a registered network is the feature part."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn

from domainwise.core.errors import UserError
from domainwise.nets import NETWORKS
from domainwise.nets.stages import stages

F = TypeVar("F", bound=Callable[[tuple[int, ...]], nn.Module])


def network(name: str, *, weights: str | None = None) -> Callable[[F], F]:
    """Registers a feature network: a module made from the input's shape, with its feature size as `out_features`.

    `weights` names the pre-trained weights it starts from; without, its start is random. A network may declare

    - `per_sample = True` if the features of a sample depend on that sample alone: then batches may be padded
    - `compiles = False` if torch.compile gains nothing
    - `reads_vectors = True` if it has no first convolution: methods that widen one are then refused
    - `learns = False` if it has no weights: methods that only change features are then refused

    A method `stages(x)` names its layers: see `nets.stages`.
    """

    def register(features: F) -> F:
        NETWORKS.add(name, features, weights=weights)
        return features

    return register


class Network(nn.Module):
    """x -> features(x) -> dropout -> classifier, in float32 or, with precision "bf16", features under autocast.

    `features` may be any module that maps [N, ...] to [N, feature_size]; outputs have the dtype of the input.
    """

    def __init__(
        self,
        features: nn.Module,
        classes: int,
        *,
        feature_size: int | None = None,
        dropout: float = 0.0,
        precision: str = "fp32",
    ) -> None:
        super().__init__()
        size = feature_size if feature_size is not None else getattr(features, "out_features", None)
        if not isinstance(size, int):
            raise UserError(f"network {type(features).__name__} has no out_features: give feature_size=")
        self.feature_size, self.classes, self.precision = size, classes, precision
        self.features = features
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(size, classes)
        self.frozen = False
        self.given_features = False  # whether inputs are features that were computed beforehand
        self.rate_factors: dict[nn.Parameter, float] = {}  # by which learning rates are multiplied, where not by 1

    def freeze_features(self) -> None:
        """From now on the features do not learn and are in eval mode, in training too."""
        self.frozen = True
        self.features.requires_grad_(False)
        self.features.eval()

    def train(self, mode: bool = True) -> "Network":
        super().train(mode)
        if self.frozen:
            self.features.eval()
        return self

    def _cast(self, x: Tensor) -> AbstractContextManager[object]:
        return torch.autocast(x.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def represent(self, x: Tensor) -> Tensor:
        """Features [N, feature_size] of inputs [N, ...]."""
        if self.given_features:
            dropped: Tensor = self.dropout(x)
            return dropped
        x = _channels_last(x)
        with self._cast(x):
            z: Tensor = self.dropout(self.features(x))
        return z.to(x.dtype)

    def stages(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The outputs of the stages of the features, and the features as `represent` returns them."""
        x = _channels_last(x)
        with self._cast(x):
            outputs, z = stages(self.features, x)
            z = self.dropout(z)
        return [output.to(x.dtype) for output in outputs], z.to(x.dtype)

    def classify(self, z: Tensor) -> Tensor:
        """Logits [N, classes] of features, not under autocast: casting would cost more than it saves."""
        logits: Tensor = self.classifier(z)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.represent(x))


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def build(name: str, shape: tuple[int, ...], classes: int, *, dropout: float = 0.0, precision: str = "fp32") -> Network:
    """The registered network `name` for inputs of this shape, with a fresh classifier."""
    return Network(NETWORKS[name](shape), classes, dropout=dropout, precision=precision)
