"""Environments: named domains of images (or vectors) and labels, one tensor from first reading to last step."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from domainwise.core.errors import UserError, unknown
from domainwise.core.phrasing import counted
from domainwise.core.seeds import permutation
from domainwise.core.threads import cpu_threads
from domainwise.data.group_split import hold_out_groups
from domainwise.data.items import read_items
from domainwise.data.originals import Originals
from domainwise.data.preprocessing import Preprocessing
from domainwise.protocol.runs import HELD_OUT

DEVICE_SHARE = 0.5
"""The share of a device's free memory that images may take; the rest is for training the network."""


@dataclass(frozen=True)
class Environments:
    """Images of several domains, one domain after another; or vectors, the rows of a table of numbers.

    `preprocessing` defines what a network sees of them; `low` and `high` are the legal range in those units.
    """

    name: str
    images: Tensor  # uint8 [N, C, H, W], or float vectors [N, D]
    labels: Tensor  # int64 [N]
    sizes: Mapping[str, int]  # images per domain, in order
    classes: tuple[str, ...]
    mean: Tensor  # [C, 1, 1], or [D]
    std: Tensor  # [C, 1, 1], or [D]
    absent: Mapping[str, str] = field(default_factory=dict)  # domains whose files are missing, and how to get them
    streamed: bool = False
    """Whether images stay on the host and are copied to the device batch by batch."""
    groups: Tensor | None = (
        None  # int64 [N]; samples of one group (a patient, a burst) are never divided between splits
    )
    held_out: Tensor | None = None  # bool [N]; which samples are `out`, where that is given; else they are drawn
    whole: tuple[str, ...] = ()  # domains that are never divided: all of them is `in`
    weights: Tensor | None = None  # float64 [N]; how often samples are drawn, as multiples of each other
    window: tuple[int, int] | None = None  # the grey values of 16-bit files that were read as black and white
    open_originals: Callable[[], Originals] | None = None  # the same images at their own sizes, where they are files
    originals: Originals | None = None  # these, where training crops are taken from them
    given_test: Mapping[str, str] = field(default_factory=dict)
    """{domain of rows that are given as test: the domain, as their table names it}."""

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        sizes = ", ".join(f"{domain} {size:,}" for domain, size in self.sizes.items())
        return f"<Environments {self.name}: {len(self.images):,} of {shape}, {len(self.classes)} classes; {sizes}>"

    @classmethod
    def from_arrays(
        cls,
        domains: Mapping[str, tuple[Any, Any]],
        *,
        name: str = "arrays",
        classes: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> "Environments":
        """From {domain: (uint8 images [n, C, H, W] or float vectors [n, D], labels [n] from 0)}.

        Images are scaled to [0, 1] unless `mean` and `std` are given; vectors are standardised by their training rows.
        """
        if not domains:
            raise UserError(f"{name}: no domains given")
        images = {domain: _as_inputs(x, f"{name}/{domain}") for domain, (x, _) in domains.items()}
        labels = {domain: _as_labels(y, f"{name}/{domain}") for domain, (_, y) in domains.items()}
        for domain, x in images.items():
            if labels[domain].shape != x.shape[:1]:
                raise UserError(f"{name}/{domain}: {len(x)} images but labels of shape {tuple(labels[domain].shape)}")
        if len({x.shape[1:] for x in images.values()}) > 1:
            raise UserError(f"{name}: domains differ in image shape: {[tuple(x.shape[1:]) for x in images.values()]}")
        sizes = {domain: len(x) for domain, x in images.items()}
        every_image, every_label = torch.cat(list(images.values())), torch.cat(list(labels.values()))
        return cls.from_images(every_image, every_label, sizes, name=name, classes=classes, mean=mean, std=std)

    @classmethod
    def from_datasets(
        cls,
        domains: Mapping[str, Any],
        *,
        name: str = "datasets",
        classes: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        workers: int = 0,
    ) -> "Environments":
        """From {domain: torch Dataset} of items (image, label); images are uint8, float in [0, 1], or Pillow's.

        `workers` processes read items in parallel, which helps where a dataset decodes images. Class names are the
        datasets' `.classes` by default.
        """
        if classes is None:
            named = {tuple(map(str, getattr(dataset, "classes", ()))) for dataset in domains.values()}
            classes = next(iter(named)) if len(named) == 1 else None
        arrays = {domain: read_items(dataset, f"{name}/{domain}", workers) for domain, dataset in domains.items()}
        return cls.from_arrays(arrays, name=name, classes=classes, mean=mean, std=std)

    @classmethod
    def from_images(
        cls,
        images: Tensor,
        labels: Tensor,
        sizes: Mapping[str, int],
        *,
        name: str,
        classes: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> "Environments":
        """From all images (or vectors), one domain after another, their labels [N] and counts; nothing is copied."""
        for domain, size in sizes.items():
            if not size:
                raise UserError(f"{name}/{domain}: 0 images; leave the domain out, or give it some")
        low, high = int(labels.min()), int(labels.max())
        names = tuple(classes) if classes else tuple(str(i) for i in range(high + 1))
        if low < 0 or high >= len(names):
            raise UserError(f"{name}: labels run from {low} to {high} for {len(names)} classes")
        if images.ndim == 2 and (mean is not None or std is not None):
            raise UserError(f"{name}: vectors are standardised by the rows trained on: leave out mean and std")
        channels, dtype = images.shape[1], images.dtype if images.ndim == 2 else torch.float32
        means = _per_channel([0.0] * channels if mean is None else mean, channels, f"{name}: mean")
        stds = _per_channel([1.0] * channels if std is None else std, channels, f"{name}: std")
        seen = Preprocessing.from_values(images.shape[1:], names, means, stds, dtype)
        if not bool((seen.std > 0).all()):
            raise UserError(f"{name}: std has {float(seen.std.min()):g}; it divides, so every number must be above 0")
        return cls(name, images, labels, dict(sizes), names, seen.mean, seen.std)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing(self.shape, self.classes, self.mean, self.std, self.window)

    @property
    def vectors(self) -> bool:
        """Whether the inputs are rows of numbers, not images."""
        return self.preprocessing.vectors

    @property
    def low(self) -> Tensor:
        return self.preprocessing.low

    @property
    def high(self) -> Tensor:
        return self.preprocessing.high

    def normalise(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """What the network sees of uint8 images [..., C, H, W], or of vectors [..., D]."""
        return self.preprocessing.normalise(images, dtype)

    def normalised_by(self, mean: Sequence[float] | None, std: Sequence[float] | None) -> "Environments":
        """Images normalised by this mean and std per channel; None, and vectors, leave the data as they are."""
        if self.vectors or mean is None or std is None:
            return self
        channels = self.shape[0]
        means = _per_channel(list(mean), channels, f"{self.name}: mean")
        stds = _per_channel(list(std), channels, f"{self.name}: std")
        seen = Preprocessing.from_values(self.shape, self.classes, means, stds)
        return replace(self, mean=seen.mean.to(self.mean), std=seen.std.to(self.std))

    def standardised(self, rows: Tensor) -> "Environments":
        """Vectors standardised by the mean and standard deviation of these rows; constant columns are not scaled.

        The rows are the training rows, so that no unseen sample influences what the network sees. Images are unchanged.
        """
        if not self.vectors:
            return self
        known = self.images[rows.to(self.images.device)]
        with cpu_threads(1):  # the same bits in every process
            mean, std = known.mean(0), known.std(0, unbiased=False)
        if not bool((torch.isfinite(mean) & torch.isfinite(std)).all()):
            column = int((~torch.isfinite(mean + std)).nonzero()[0])
            raise UserError(f"{self.name}: the numbers of column {column} are too large to be standardised: rescale it")
        negligible = std <= 10 * torch.finfo(known.dtype).eps * known.abs().amax(0)
        return replace(self, mean=mean, std=torch.where(negligible, 1.0, std))

    def test_rows_of(self, trained_on: Iterable[str]) -> tuple[str, ...]:
        """The domains of rows that are given as test, but come from one of these: nothing about them is unseen."""
        known = set(trained_on)
        return tuple(domain for domain, named in self.given_test.items() if named in known)

    def rows(self, domain: str) -> Tensor:
        """The row numbers of one domain's images."""
        if domain in self.absent:
            raise UserError(self.absent[domain], argument="data_root")
        if domain not in self.sizes:
            raise unknown(f"domain of {self.name}", domain, self.sizes)
        start = sum(self.sizes[earlier] for earlier in self.domains[: self.domains.index(domain)])
        return torch.arange(start, start + self.sizes[domain])

    def split(self, domain: str, trial: int, held_out: float = HELD_OUT) -> dict[str, Tensor]:
        """The domain's rows, shuffled by a seed of (trial, domain): the first int(0.2 n) are `out`, the rest `in`.

        Rows whose split is given keep it; domains that are `whole` are all `in`. Groups stay whole: `out` is made of
        groups, with about 0.2 of every class. A domain too small to be split is a UserError.
        """
        rows = self.rows(domain)
        held_out = 0.0 if domain in self.whole else held_out
        count = int(held_out * len(rows))
        shuffled = rows[permutation(len(rows), "split", trial, domain)]
        if held_out and self.held_out is not None and bool(self.held_out[rows].any()):
            out = self.held_out[shuffled]
        elif held_out and self.groups is not None:
            out = self._held_out_groups(trial, held_out)[shuffled]
        else:
            out = torch.arange(len(rows)) < count
        if held_out and not 0 < int(out.sum()) < len(rows):
            raise UserError(f"{self.name}/{domain}: {self._too_small(rows, held_out)}")
        return {"out": shuffled[out], "in": shuffled[~out]}

    def _too_small(self, rows: Tensor, held_out: float) -> str:
        if self.held_out is not None and bool(self.held_out[rows].any()):
            return f"all {len(rows)} images are given as validation: give some as training"
        if self.groups is not None:
            count = len(self.groups[rows].unique())
            return (
                f"{len(rows)} images in {counted(count, 'group')} cannot be split: a domain needs at least two groups"
            )
        return f"{len(rows)} images; a domain needs at least {math.ceil(1 / held_out)} to be split"

    def _held_out_groups(self, trial: int, held_out: float) -> Tensor:
        """Of every row, whether its group is held out; one choice for all domains, since a group may be in several."""
        assert self.groups is not None
        domains = np.repeat(np.arange(len(self.sizes)), list(self.sizes.values()))
        groups, labels = self.groups.cpu().numpy(), self.labels.cpu().numpy()
        order = lambda n: permutation(n, "split", trial, "groups").numpy()  # noqa: E731
        return torch.from_numpy(hold_out_groups(groups, domains, labels, held_out, order))

    @property
    def device(self) -> torch.device:
        """The device that batches are used on; streamed images themselves stay on the host."""
        return self.mean.device

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Images (uint8) [..., C, H, W] and labels of rows [...], on the device."""
        labels = self.labels[rows]
        if not self.streamed:
            return self.images.index_select(0, rows.flatten()).view(*rows.shape, *self.shape), labels
        staged = torch.empty(rows.numel(), *self.shape, dtype=self.images.dtype, pin_memory=self.device.type == "cuda")
        # numpy uses one thread; torch would start as many as the machine has cores, beside those of the training
        np.take(self.images.numpy(), rows.flatten().cpu().numpy(), axis=0, out=staged.numpy(), mode="clip")
        return staged.view(*rows.shape, *self.shape).to(self.device, non_blocking=True), labels

    def gather_for_training(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Images and labels of rows [...], on the device; of originals their places, their pixels and labels."""
        if self.originals is None:
            return self.gather(rows)
        if self.streamed:
            return *self.originals.stage(rows, self.device), self.labels[rows]
        return *self.originals.gather(rows), self.labels[rows]

    def to(self, device: torch.device | str, *, streamed: bool | None = None) -> "Environments":
        """On the device; images are streamed if they do not fit or were streamed before; `streamed` overrides that."""
        device = torch.device(device)
        if streamed is None:
            stores = [self.images] if self.originals is None else [self.images, self.originals.pixels]
            missing = sum(store.nbytes for store in stores if store.device.type != device.type)
            streamed = self.streamed or not fits_memory(missing, free_memory(device))
        moved = {name: getattr(self, name).to(device) for name in ("labels", "mean", "std")}
        place = torch.device("cpu") if streamed else device
        originals = None if self.originals is None else self.originals.to(place)
        return replace(self, **moved, images=self.images.to(place), originals=originals, streamed=streamed)


def fits_memory(size: int, free: int | None) -> bool:
    """Whether a device with so much free memory can hold `size` bytes of images; the host (None) always can."""
    return free is None or size <= DEVICE_SHARE * free


def free_memory(device: torch.device) -> int | None:
    """Free memory of a device in bytes; None for the host."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def _as_inputs(x: Any, where: str) -> Tensor:
    inputs = torch.as_tensor(np.asarray(x))
    if inputs.ndim == 2 and inputs.dtype in (torch.float32, torch.float64):
        if not bool(torch.isfinite(inputs).all()):
            row = int((~torch.isfinite(inputs)).any(1).nonzero()[0])
            raise UserError(f"{where}: row {row} holds a number that is not finite: fill it in or leave the row out")
        return inputs
    if inputs.dtype != torch.uint8 or inputs.ndim != 4:
        kind = f"{str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape)}"
        raise UserError(
            f"{where}: images must be uint8 of shape [n, channels, height, width] "
            f"(or vectors float of shape [n, columns]), not {kind}"
        )
    return inputs


def _as_labels(y: Any, where: str) -> Tensor:
    try:
        labels = np.asarray(y)
    except ValueError:
        raise UserError(
            f"{where}: labels must be one whole number per sample, not lists that differ in length"
        ) from None
    numbers = labels.dtype.kind in "biuf"
    odd = ~(np.isfinite(labels) & (labels == np.floor(labels))) if numbers else np.ones(labels.shape, bool)
    if odd.any():
        example = labels[odd].tolist()[0]
        advice = "number the classes, and name them by classes="
        raise UserError(f"{where}: labels must be whole numbers from 0, not {example!r}: {advice}")
    return torch.from_numpy(labels.astype(np.int64))


def _per_channel(values: Any, channels: int, name: str) -> list[float]:
    """One finite number for each channel."""
    try:
        numbers = np.asarray(values, np.float64)
    except (ValueError, TypeError):
        raise UserError(f"{name} must be numbers, not {values!r}") from None
    listed: list[float] = numbers.tolist()
    if numbers.shape != (channels,) or not np.isfinite(numbers).all():
        raise UserError(f"{name} is {listed}; the images have {channels} channels: give one finite number for each")
    return listed
