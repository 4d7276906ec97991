"""Feature networks for digits."""

import math

from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.kernels import operation
from domainwise.nets.network import network
from domainwise.nets.stages import stages


@network("mnist-cnn")
class MNISTConvNet(nn.Module):
    """DomainBed's MNIST CNN: four 3x3 convolutions, each ReLU then GroupNorm(8), global average pool, 128 features.

    On a GPU the accelerated version is already fused, so compiling gains nothing.
    """

    out_features = 128
    per_sample = True
    compiles = False

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        widths, strides = (shape[0], 64, 128, 128, 128), (1, 2, 1, 1)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(c_in, c_out, 3, stride, padding=1)
            for c_in, c_out, stride in zip(widths[:-1], widths[1:], strides, strict=True)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for width in widths[1:])

    @operation("group_norm_convnet")
    def forward(self, x: Tensor) -> Tensor:
        for layer in zip(self.convolutions, self.norms, strict=True):
            x = _conv_relu_norm(x, *layer)
        return x.mean(dim=(2, 3))

    def stages(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The outputs of the four layers, and the features."""
        outputs: list[Tensor] = []
        for layer in zip(self.convolutions, self.norms, strict=True):
            outputs.append(_conv_relu_norm(outputs[-1] if outputs else x, *layer))
        return outputs, outputs[-1].mean(dim=(2, 3))


def _conv_relu_norm(x: Tensor, convolution: nn.Module, norm: nn.Module) -> Tensor:
    assert isinstance(norm, nn.GroupNorm)
    x = F.relu(convolution(x), inplace=True)
    y: Tensor = norm(x.to(norm.weight.dtype))  # in bf16 too: as CUDA's autocast does, and faster on a CPU
    return y


@network("small-cnn")
class SmallConvNet(nn.Sequential):
    """Three 3x3 convolutions of stride 2 with 16, 32, 32 channels and ReLU, flattened: trains in seconds on a CPU."""

    per_sample = True

    def __init__(self, shape: tuple[int, ...]) -> None:
        channels, height, width = shape
        super().__init__(
            nn.Conv2d(channels, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.out_features = 32 * -(-height // 8) * -(-width // 8)


@network("digits-cnn")
class DigitsConvNet(nn.Sequential):
    """The single-source Digits network: two 5x5 convolutions (64, 128), each ReLU and max-pool, two layers of 1024."""

    out_features = 1024
    per_sample = True

    def __init__(self, shape: tuple[int, ...]) -> None:
        channels, height, width = shape
        pixels = (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        super().__init__(
            nn.Conv2d(channels, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128 * pixels, 1024),
            nn.ReLU(),
            nn.Linear(1024, 1024),
            nn.ReLU(),
        )


@network("mlp")
class MLP(nn.Module):
    """Two hidden layers of 390 units with ReLU on images averaged down to 14x14 (or on vectors): for quick work."""

    out_features = 390
    per_sample = True
    reads_vectors = True

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.image = len(shape) == 3
        inputs = shape[0] * 14 * 14 if self.image else shape[0]
        self.layers = nn.Sequential(nn.Linear(inputs, 390), nn.ReLU(), nn.Linear(390, 390), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(self._flat(x))
        return z

    def stages(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The outputs of both hidden layers, the second of which are the features."""
        return stages(self.layers, self._flat(x))

    def _flat(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, 14).flatten(1) if self.image else x


@network("linear")
class Linear(nn.Flatten):
    """No features of its own: a linear classifier on the inputs, for vectors such as features of another network."""

    per_sample = True
    compiles = False
    reads_vectors = True
    learns = False

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.out_features = math.prod(shape)
