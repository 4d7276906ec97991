"""ResNet-18 and ResNet-50 (He et al. 2016, https://arxiv.org/abs/1512.03385) with torchvision's key names.

Written here and not taken from torchvision: the BatchNorm can be frozen, the input may have any number of channels, the
original strides are available, and there is no classifier. Three choices define a registered network:

start       ImageNet weights (`nets.weights`) or random
BatchNorm   frozen: always the stored statistics, in training too, while its scale and shift are trained (DomainBed's
            choice for fine-tuning in small batches); or live: learns its statistics (OoD-Bench's choice)
strides     of a bottleneck that halves the resolution: on the 3x3 convolution as in torchvision, or on the first 1x1
            as in the original paper; weights have the same shapes but fit only the strides they were trained with
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.core.errors import UserError
from domainwise.kernels import operation
from domainwise.nets.network import network

Norm = Callable[[int], nn.BatchNorm2d]


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that never leaves eval mode: fixed statistics, trainable scale and shift."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.eval()

    def train(self, mode: bool = True) -> "FrozenBatchNorm2d":  # noqa: ARG002 (frozen in both modes)
        super().train(False)
        return self


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        self.downsample = shortcut(inputs, width, stride, norm)

    @operation("residual_block")
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.downsample(x)
        return F.relu(y, inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm, *, stride_first: bool = False) -> None:
        super().__init__()
        first, second = (stride, 1) if stride_first else (1, stride)
        self.conv1 = nn.Conv2d(inputs, width, 1, first, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, second, padding=1, bias=False)
        self.bn2 = norm(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = norm(4 * width)
        self.downsample = shortcut(inputs, 4 * width, stride, norm)

    @operation("residual_block")
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += self.downsample(x)
        return F.relu(y, inplace=True)


def shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Module:
    """The identity, or a 1x1 convolution with BatchNorm where the shape changes."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))


@operation("resnet_stem")
def stem(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """A ResNet's start: a 7x7 convolution of stride 2, BatchNorm, ReLU and a 3x3 max-pool of stride 2."""
    return F.max_pool2d(F.relu(norm(conv(x)), inplace=True), 3, stride=2, padding=1)


class Stage(nn.Sequential):
    """Residual blocks of one width; only the first may change the shape."""

    @operation("residual_stage")
    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = block(x)
        return x


class ResNet(nn.Module):
    """A 7x7 convolution, four stages of residual blocks, and the global average: features [N, 512 or 2048]."""

    per_sample = True  # unless a BatchNorm is in training mode

    def __init__(
        self,
        shape: tuple[int, ...],
        blocks: tuple[int, int, int, int],
        block: Callable[..., BasicBlock | Bottleneck],
        expansion: int,
        norm: Norm,
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise UserError(f"a ResNet needs images [channels, height, width], not inputs of shape {shape}")
        self.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(64)
        inputs, stages = 64, []
        for stage, count in enumerate(blocks):
            stages.append(Stage())
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                stages[-1].append(block(inputs, 64 << stage, stride, norm))
                inputs = (64 << stage) * expansion
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.out_features = inputs
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = stem(x, self.conv1, self.bn1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return x.mean(dim=(2, 3))

    def stages(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The outputs of the stem and of the four stages, and the features."""
        outputs = [stem(x, self.conv1, self.bn1)]
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            outputs.append(stage(outputs[-1]))
        return outputs, outputs[-1].mean(dim=(2, 3))


_18 = partial(ResNet, blocks=(2, 2, 2, 2), block=BasicBlock, expansion=1)
_50 = partial(ResNet, blocks=(3, 4, 6, 3), block=Bottleneck, expansion=4)


@network("resnet18", weights="resnet18")
def resnet18(shape: tuple[int, ...]) -> ResNet:
    """ResNet-18 from ImageNet weights, BatchNorm frozen: the paper's network."""
    return _18(shape, norm=FrozenBatchNorm2d)


@network("resnet18-live", weights="resnet18")
def resnet18_live(shape: tuple[int, ...]) -> ResNet:
    """ResNet-18 from ImageNet weights, BatchNorm learns: OoD-Bench's network."""
    return _18(shape, norm=nn.BatchNorm2d)


@network("resnet18-scratch")
def resnet18_scratch(shape: tuple[int, ...]) -> ResNet:
    """ResNet-18 from random weights, BatchNorm learns: for NICO, and for inputs that are not RGB."""
    return _18(shape, norm=nn.BatchNorm2d)


@network("resnet50", weights="resnet50")
def resnet50(shape: tuple[int, ...]) -> ResNet:
    """ResNet-50 from ImageNet weights, BatchNorm frozen: DomainBed's network."""
    return _50(shape, norm=FrozenBatchNorm2d)


@network("resnet50-live", weights="resnet50")
def resnet50_live(shape: tuple[int, ...]) -> ResNet:
    """ResNet-50 from ImageNet weights, BatchNorm learns."""
    return _50(shape, norm=nn.BatchNorm2d)


@network("resnet50-augmix", weights="resnet50-augmix")
def resnet50_augmix(shape: tuple[int, ...]) -> ResNet:
    """ResNet-50 from ImageNet weights trained with AugMix, BatchNorm frozen."""
    return _50(shape, norm=FrozenBatchNorm2d)


@network("resnet50-augmix-live", weights="resnet50-augmix")
def resnet50_augmix_live(shape: tuple[int, ...]) -> ResNet:
    """ResNet-50 from ImageNet weights trained with AugMix, BatchNorm learns: DomainBed's network since July 2024."""
    return _50(shape, norm=nn.BatchNorm2d)


@network("resnet50-scratch")
def resnet50_scratch(shape: tuple[int, ...]) -> ResNet:
    """ResNet-50 from random weights, BatchNorm learns."""
    return _50(shape, norm=nn.BatchNorm2d)


@network("resnet50-v1", weights="resnet50-v1")
def resnet50_v1(shape: tuple[int, ...]) -> ResNet:
    """ResNet-50 with the original strides (on the first 1x1), from such ImageNet weights, BatchNorm frozen."""
    return _50(shape, block=partial(Bottleneck, stride_first=True), norm=FrozenBatchNorm2d)
