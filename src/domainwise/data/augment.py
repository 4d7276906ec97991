"""Augmentation of whole batches on the device, with random parameters for every sample.

uint8 images [N, 3, H, W] are cropped at random and resized back to H x W, flipped, their brightness, contrast,
saturation and hue changed in random order, some made grey, and normalised. The definitions are those of torchvision's
transforms (RandomResizedCrop, ColorJitter, RandomGrayscale). Written here and not taken from a library, because it must
be usable inside a captured step: fixed shapes, no constant made in the step, nothing read back by the host, and all
randomness in one draw of uniform numbers from a given generator.

Values stay real numbers between the operations, where Pillow rounds each result to 1/255. With the same parameters the
results agree, in units of 1/255, within 1.1 after crop, resize and flip; 1.6 after brightness, contrast, saturation or
greyscale; 13 after hue, of which Pillow stores 256 levels (mean difference below 1.5). A crop of images that have the
network's size is never larger than what it is resized to, so that Pillow's antialiasing, which averages when an image
shrinks, has nothing to do. Crops of images at their own sizes may be, and are resized with antialiasing.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.data.augmentations import AUGMENTATIONS, Augmentation, check_augmentation
from domainwise.data.environments import Environments
from domainwise.data.originals import Originals
from domainwise.kernels import operation
from domainwise.kernels.augment import HUE, LUMA, NUMBERS


def for_augmentation(name: str, environments: Environments) -> Environments:
    """The data that `preparation` of this augmentation reads: with images at their own sizes, or without these."""
    from_files = environments.open_originals is not None
    check_augmentation(name, environments.shape, environments.name, from_files=from_files)
    augmentation = AUGMENTATIONS[name]
    if augmentation is None or not augmentation.original_size or environments.open_originals is None:
        return replace(environments, originals=None)
    return replace(environments, originals=environments.originals or environments.open_originals())


def preparation(name: str, environments: Environments, generator: torch.Generator) -> "Augmenter | None":
    """How training images become what the network sees: augmented by this random stream; None: only normalised."""
    augmentation = AUGMENTATIONS[name]
    if augmentation is None:
        return None
    if environments.originals is None:
        return Augmenter(augmentation, environments, generator)
    return OriginalsAugmenter(augmentation, environments, generator, environments.originals)


@dataclass(frozen=True)
class Parameters:
    """What happens to each of N samples, in this order.

    A sample's hue is turned between, before or after its three blends. For a batch to turn all its hues at once, there
    is room for three blends on either side: those on the other side are blends that change nothing.
    """

    boxes: Tensor  # [N, 4]: top, left, height, width of the crop
    flips: Tensor  # [N]: 1 or 0
    early: Tensor  # [N, 3, 3]: the weights of blend() before the hue; the first `counts` of them count
    turns: Tensor  # [N]: of the hue
    late: Tensor  # [N, 4, 3]: and after it, of which all but the first `counts` count; the last is the greyscale
    counts: Tensor  # [N]: 0 to 3


class Augmenter:
    """An augmentation for images of one shape on one device, with all its constants made beforehand."""

    dims = 3
    """Of what a batch holds of one image."""

    def __init__(self, augmentation: Augmentation, environments: Environments, generator: torch.Generator) -> None:
        self.augmentation, self.generator = augmentation, generator
        self.height, self.width = environments.shape[1:]
        self.mean, self.std = environments.mean, environments.std
        device = self.mean.device
        size = torch.tensor([[self.height, self.width]], dtype=torch.float32)
        self.size, self.central = size.to(device), tuple(central_boxes(size, augmentation.ratio).int()[0].tolist())
        self.rows = (torch.arange(self.height, device=device) + 0.5) / self.height
        self.columns = (torch.arange(self.width, device=device) + 0.5) / self.width
        self.spread = torch.tensor(augmentation.jitter, device=device)
        self.slots = torch.arange(4, device=device)
        self.unchanged = torch.tensor([1.0, 0.0, 0.0], device=device)
        self.hue_centres = torch.tensor([3.0, 2.0, 4.0], device=device).view(3, 1, 1)
        self.hue_signs = torch.tensor([-1.0, 1.0, 1.0], device=device).view(3, 1, 1)
        self.hue_offsets = torch.tensor([2.0, -1.0, -1.0], device=device).view(3, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Images [..., 3, H, W] with fresh parameters for each."""
        flat = images.flatten(0, -1 - self.dims)
        return self.augment(flat, self.draw(len(flat))).unflatten(0, images.shape[: -self.dims])

    def draw(self, count: int) -> Tensor:
        """All the randomness of `count` samples: uniform numbers [count, sum(NUMBERS)]."""
        return torch.rand(count, sum(NUMBERS), generator=self.generator, device=self.mean.device)

    @operation("augment")
    def augment(self, images: Tensor, numbers: Tensor) -> Tensor:
        """Images [N, 3, H, W] with the parameters that these numbers mean. Compiles without a break."""
        p = self.parameters(numbers, self.sizes(images))
        if self.at_once(images):
            return self._transform(images, p.boxes, p.flips, p.early, p.turns, p.late)
        result = torch.empty(len(images), len(self.mean), self.height, self.width)
        for i, count in enumerate(p.counts.tolist()):  # one at a time stays in the processor's cache
            one = slice(i, i + 1)
            early, late = p.early[one, :count], p.late[one, count:]
            result[one] = self._transform(images[one], p.boxes[one], p.flips[one], early, p.turns[one], late)
        return result

    @staticmethod
    def at_once(images: Tensor) -> bool:
        """Whether whole batches are transformed, with shapes that do not depend on the parameters."""
        return images.is_cuda or torch.compiler.is_compiling()

    def sizes(self, images: Tensor) -> Tensor:  # noqa: ARG002 (they have one size)
        """Height and width [N, 2] of images, or [1, 2] of all."""
        return self.size

    def parameters(self, numbers: Tensor, sizes: Tensor | None = None) -> Parameters:
        """The parameters of each sample, whose image has a height and width, from its uniform numbers."""
        settings = self.augmentation
        areas, ratios, place, flip, order, factors, grey = numbers.split(NUMBERS, dim=1)
        factors = (2 * factors - 1) * self.spread
        strength = (1 + factors[:, :HUE]).clamp(min=0)
        brightness, contrast, saturation = strength.unsqueeze(-1).unbind(1)
        _, less_contrast, less_saturation = (1 - strength).unsqueeze(-1).unbind(1)
        none = torch.zeros_like(brightness)
        operations = torch.stack(
            [
                torch.cat([brightness, none, none], 1),
                torch.cat([contrast, none, less_contrast], 1),
                torch.cat([saturation, less_saturation, none], 1),
                self.unchanged.expand(len(numbers), 3),
            ],
            1,
        )
        order = order.argsort(dim=1)
        ordered = operations.gather(1, order.unsqueeze(-1).expand(-1, -1, 3))
        position = order.argsort(dim=1)[:, HUE:]
        early = torch.where((self.slots < position).unsqueeze(-1), ordered, self.unchanged)[:, :HUE]
        late = torch.where((self.slots > position).unsqueeze(-1), ordered, self.unchanged)[:, 1:]
        colourless = (grey < settings.grey).to(grey.dtype)
        greyscale = torch.cat([1 - colourless, colourless, none], 1).unsqueeze(1)
        return Parameters(
            self._boxes(areas, ratios, place, self.size if sizes is None else sizes),
            (flip < settings.flip).squeeze(1).to(flip.dtype),
            early,
            factors[:, HUE],
            torch.cat([late, greyscale], 1),
            position.squeeze(1),
        )

    def _boxes(self, areas: Tensor, ratios: Tensor, place: Tensor, sizes: Tensor) -> Tensor:
        """The first box of an area and a ratio in their ranges that fits into the image, at a random place.

        Ratios are uniform in their logarithm. If no box fits, the largest central one with a ratio in range is taken.
        """
        (low, high), limits = self.augmentation.scale, self.augmentation.ratio
        tallest, widest = sizes.to(areas.dtype).split(1, 1)
        area = (low + (high - low) * areas) * (tallest * widest)
        ratio = (math.log(limits[0]) + math.log(limits[1] / limits[0]) * ratios).exp()
        widths, heights = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        fits = (widths >= 1) & (widths <= widest) & (heights >= 1) & (heights <= tallest)
        first = fits.to(torch.uint8).argmax(1, keepdim=True)
        width, height = widths.gather(1, first), heights.gather(1, first)
        top = (place[:, :1] * (tallest - height + 1)).floor().minimum(tallest - height)
        left = (place[:, 1:] * (widest - width + 1)).floor().minimum(widest - width)
        drawn, central = torch.cat([top, left, height, width], 1), central_boxes(sizes, limits)
        return torch.where(fits.any(1, keepdim=True), drawn, central.to(drawn.dtype))

    def _transform(
        self, images: Tensor, boxes: Tensor, flips: Tensor, early: Tensor, turns: Tensor, late: Tensor
    ) -> Tensor:
        x = self.crop(images, boxes, flips)
        for weights in early.unbind(1):
            x = blend(x, weights)
        x = self.turn_hue(x, turns)
        for weights in late.unbind(1):
            x = blend(x, weights)
        return x.sub_(self.mean).div_(self.std)

    def crop(self, images: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
        """The boxes, resized to H x W bilinearly from pixels inside, in [0, 1]; mirrored where `flips` is 1."""
        top, left, height, width = boxes.unsqueeze(-1).unbind(1)
        flip = flips.unsqueeze(1)
        across = flip + (1 - 2 * flip) * self.columns
        y = (top + self.rows * height - 0.5).clamp(top, top + height - 1) * (2 / max(self.height - 1, 1)) - 1
        z = (left + across * width - 0.5).clamp(left, left + width - 1) * (2 / max(self.width - 1, 1)) - 1
        shape = (-1, self.height, self.width)
        grid = torch.stack([z.unsqueeze(1).expand(shape), y.unsqueeze(2).expand(shape)], -1)
        return F.grid_sample(images / 255, grid, mode="bilinear", padding_mode="border", align_corners=True)

    def turn_hue(self, x: Tensor, turns: Tensor) -> Tensor:
        """Adds to the hue of HSV, in turns of its circle; value and saturation stay.

        With M, m the largest and smallest channel and h in [0, 6) the new hue, the channels are M - (M - m) s(h), where
        s is a trapezium around the opposite hue: 2 - |h - 3| for red, |h - 2| - 1 for green, |h - 4| - 1 for blue, each
        clamped to [0, 1].
        """
        high, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
        chroma = high - low
        red, green, blue = x[:, :1], x[:, 1:2], x[:, 2:]
        sector = torch.where(
            red == high, green - blue, torch.where(green == high, blue - red + 2 * chroma, red - green + 4 * chroma)
        )
        hue = (sector / chroma.clamp(min=1e-9)).add_(6 * turns.view(-1, 1, 1, 1))
        hue = hue.sub_((hue * (1 / 6)).floor_(), alpha=6)
        share = (hue - self.hue_centres).abs_().mul_(self.hue_signs).add_(self.hue_offsets).clamp_(0, 1)
        return high - share.mul_(chroma)


class OriginalsAugmenter(Augmenter):
    """The same for images at their own sizes: a batch holds their places [..., 3], and the tensor that these are in.

    Crops are resized once, with antialiasing where they shrink.
    """

    dims = 1

    def __init__(
        self,
        augmentation: Augmentation,
        environments: Environments,
        generator: torch.Generator,
        originals: Originals,
    ) -> None:
        super().__init__(augmentation, environments, generator)
        self.pixels = originals.pixels
        sizes, (low, high) = originals.places[:, 1:], augmentation.ratio
        longest = math.ceil(max(high, 1 / low) * (1 + int(sizes.amin(1).max())))  # 1, because sides are rounded
        self.reach = torch.arange(min(longest, int(sizes.max())), device=self.mean.device)
        self.channels = torch.arange(3, device=self.mean.device)

    def __call__(self, images: Tensor, pixels: Tensor | None = None) -> Tensor:
        """Images at these places in `pixels`, by default those of all originals, with fresh parameters for each."""
        if pixels is not None:
            self.pixels = pixels
        return super().__call__(images)

    def sizes(self, images: Tensor) -> Tensor:
        return images[:, 1:].clamp(min=1).float()  # where a batch is filled up, they are 0

    def crop(self, images: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
        """The boxes, resized as Pillow does it, in [0, 1]; mirrored where `flips` is 1."""
        if self.at_once(images):
            return self._crop_at_once(images, boxes.long(), flips)
        ((start, height, width),) = images.tolist()
        ((top, left, tall, wide),) = boxes.int().tolist()
        image = self.pixels[start : start + 3 * height * width].view(1, 3, height, width)
        part = image[..., top : top + tall, left : left + wide] / 255
        x = F.interpolate(part, (self.height, self.width), mode="bilinear", antialias=True)
        return x.flip(-1) if flips[0] else x

    def _crop_at_once(self, images: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
        """The same as two products of matrices, with room for the largest crop."""
        start, height, width = images.unsqueeze(1).unbind(2)
        top, left, tall, wide = boxes.unsqueeze(1).unbind(2)
        rows, columns = top + self.reach.minimum(tall - 1), left + self.reach.minimum(wide - 1)
        channels = start + self.channels * (height * width)
        inside = (rows * width).unsqueeze(2) + columns.unsqueeze(1)
        x = self.pixels[channels[:, :, None, None] + inside.unsqueeze(1)] / 255
        flip = flips.unsqueeze(1)
        across = flip + (1 - 2 * flip) * self.columns
        down = self._weights(self.rows.expand(len(images), -1), tall)
        return down @ x @ self._weights(across, wide).mT

    def _weights(self, centres: Tensor, length: Tensor) -> Tensor:
        """[N, 1, outputs, inputs]: how much each of `length` pixels counts, by its distance from an output's centre.

        Weights are triangles as wide as two pixels, of the input or of the output, whichever are larger.
        """
        scale = (length / centres.shape[1]).clamp(min=1).unsqueeze(2)
        distance = self.reach + 0.5 - (centres * length).unsqueeze(2)
        weights = (1 - (distance / scale).abs()).clamp(min=0) * (self.reach < length).unsqueeze(1)
        return (weights / weights.sum(2, keepdim=True)).unsqueeze(1)


def central_boxes(sizes: Tensor, limits: tuple[float, float]) -> Tensor:
    """Top, left, height and width [N, 4] of the largest box in the middle whose width / height is in range."""
    height, width = sizes.double().split(1, 1)
    ratio = (width / height).clamp(*limits)
    tall, wide = height.minimum((width / ratio).round()), width.minimum((height * ratio).round())
    return torch.cat([((height - tall) / 2).floor(), ((width - wide) / 2).floor(), tall, wide], 1)


def blend(x: Tensor, weights: Tensor) -> Tensor:
    """A sum of the image, its grey version and that one's mean, with weights [N, 3], clamped to [0, 1].

    Brightness f is (f, 0, 0): towards black; contrast (f, 0, 1 - f): towards the mean grey; saturation (f, 1 - f, 0):
    towards the grey image; greyscale (0, 1, 0).
    """
    image, grey, mean = weights.view(-1, 3, 1, 1, 1).unbind(1)
    luma = (LUMA[0] * x[:, :1]).add_(x[:, 1:2], alpha=LUMA[1]).add_(x[:, 2:], alpha=LUMA[2])
    offset = mean * luma.mean((2, 3), keepdim=True)
    return (x * image).add_(luma.mul_(grey).add_(offset)).clamp_(0, 1)
