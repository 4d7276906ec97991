"""Learned perturbations: does that of a domain fit the domain's background (paper, Section 4)?

Two claims are measured apart, each against chance:

    low frequency     share of the perturbation's energy at frequencies up to LOW, without its mean level, against white
                      noise and the domain's images
    the background    cosine of the perturbation with (the domain's mean image - the mean over the domains), against
                      perturbations of the same spectrum with random phases

The second control matters: a smooth perturbation is by accident more parallel to a smooth background than noise is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.core.seeds import generator
from domainwise.engine.restore import TrainedRun, finished

LOW = 1 / 8
"""Cycles per pixel: patterns at least eight pixels long count as low frequency."""
WITH_PERTURBATIONS = ("DAT", "UAT", "EnsembleUAT")
"""Methods that learn perturbations, the most telling first."""
CONTROLS = 1000
"""Random perturbations per control."""
IMAGES = 256
"""Images of a domain whose spectra are averaged, at most."""
MOSTLY = 0.5
"""More than this share of the energy, and a pattern counts as one of low frequency."""
SMOOTHER = 2.0
"""Times the share of white noise, and a pattern counts as smoother than noise."""


@dataclass(frozen=True)
class Spectrum:
    """Shares of the energy in rings of equal width around frequency zero; the shares add up to one."""

    frequencies: Tensor  # [R], cycles per pixel
    energy: Tensor  # [R]
    low: float  # the share at frequencies up to LOW of all above zero


@dataclass(frozen=True)
class Perturbation:
    """One domain's perturbation, in units of the image (0 to 1), and how it relates to the domain."""

    domain: str
    delta: Tensor  # [C, H, W]
    norm: float  # l2, in the network's units, as eps is
    mean_image: Tensor
    sample: Tensor
    perturbed: Tensor
    spectrum: Spectrum
    mean_spectrum: Spectrum
    noise_low: float  # the share of white noise
    images_low: float  # the share of the domain's images
    cosine: float
    chance: float  # the |cosine| that random perturbations of the same spectrum rarely exceed (5 % over all domains)

    @property
    def fits(self) -> bool:
        return abs(self.cosine) > self.chance


@dataclass(frozen=True)
class Perturbations:
    """Those of one run; a universal perturbation is compared with every domain."""

    dataset: str
    method: str
    eps: float
    universal: bool
    domains: tuple[Perturbation, ...]

    @property
    def sentence(self) -> str:
        """Does the perturbation fit the background? Only as much as was measured."""
        if all(p.spectrum.low > MOSTLY for p in self.domains):
            smooth = "mostly of low frequency"
        elif all(p.spectrum.low > SMOOTHER * p.noise_low for p in self.domains):
            smooth = "smoother than white noise, but not mostly of low frequency"
        else:
            smooth = "not clearly smoother than white noise"
        low = _range([p.spectrum.low for p in self.domains[: 1 if self.universal else None]])
        images = _range([p.images_low for p in self.domains])
        fitting = [p for p in self.domains if p.fits]
        verdict = {0: "not supported here", len(self.domains): "supported here"}.get(len(fitting), "supported in part")
        cosines = ", ".join(f"{p.cosine:+.2f} ({p.domain}; chance ±{p.chance:.2f})" for p in self.domains)
        return (
            f"Does the perturbation fit the background? It is {smooth}: {low} of its energy has a period of "
            f"{1 / LOW:.0f} pixels or more; of white noise's {_range([self.domains[0].noise_low])} have, of the "
            f"domains' images' {images}. "
            f"Its cosine with what sets a domain's mean image apart is {cosines}: that it fits the domain's background "
            f"is {verdict}."
        )


def _range(shares: Sequence[float]) -> str:
    low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def folder_with_perturbations(folders: Sequence[Path]) -> Path:
    """Of several runs' folders, one with learned perturbations, if there is one."""
    methods = {finished(folder).run.algorithm: folder for folder in reversed(folders)}
    return next((methods[name] for name in WITH_PERTURBATIONS if name in methods), folders[0])


def measure(trained: TrainedRun) -> Perturbations:
    """The perturbations that a run of DAT, UAT or EnsembleUAT learned."""
    run, data = trained.run, trained.environments.to("cpu")
    learned = dict(trained.algorithm.named_buffers()).get("delta")
    if learned is None:
        raise UserError(f"{run}: {run.algorithm} learns no perturbations; use a run of DAT, UAT or EnsembleUAT")
    if len(data.shape) != 3:
        raise UserError(f"{run}: perturbations of inputs of shape {data.shape} are not pictures")
    deltas = learned.detach().cpu()[:, 0].expand(len(run.train_domains), *data.shape)
    rows = [data.split(domain, run.trial, run.held_out)["in"] for domain in run.train_domains]
    means = torch.stack([mean_image(data.images, members) for members in rows])
    scaled = (deltas * data.std).double()
    aligned = alignments(scaled, means - means.mean(0), 1 - 0.05 / len(run.train_domains))
    measured = []
    for number, domain in enumerate(run.train_domains):
        delta = scaled[number]
        sample = data.images[rows[number][0]] / 255
        cosine, chance = aligned[number]
        measured.append(
            Perturbation(
                domain=domain,
                delta=delta,
                norm=float(deltas[number].norm()),
                mean_image=means[number],
                sample=sample,
                perturbed=(sample + delta).clamp(0, 1),
                spectrum=spectrum(delta),
                mean_spectrum=spectrum(means[number]),
                noise_low=white_noise_low(delta.shape),
                images_low=images_low(data.images[rows[number][:IMAGES]]),
                cosine=cosine,
                chance=chance,
            )
        )
    eps = float(run.hparams["eps"] or 0)
    return Perturbations(data.name, run.algorithm, eps, len(learned) < len(run.train_domains), tuple(measured))


def mean_image(images: Tensor, rows: Tensor, chunk: int = 256) -> Tensor:
    """The mean of uint8 images, in [0, 1] and float64, without holding them all as floats."""
    total = torch.zeros(images.shape[1:], dtype=torch.float64)
    for part in rows.split(chunk):
        total += images[part].double().sum(0)
    return total / (255 * len(rows))


def spectrum(image: Tensor) -> Spectrum:
    """How the energy of [C, H, W], all channels together, is spread over the frequencies."""
    energy, radius = _energy(image), _radius(image)
    width = 1 / min(image.shape[-2:])
    ring = (radius / width).round().long()
    shares = torch.zeros(int(ring.max()) + 1, dtype=torch.float64)
    shares.index_add_(0, ring.flatten(), energy.flatten())
    total = energy.sum().clamp_min(1e-300)
    return Spectrum(torch.arange(len(shares)) * width, shares / total, _low(energy, radius))


def white_noise_low(shape: tuple[int, ...]) -> float:
    """The share of white noise's energy at low frequencies: that of the frequencies themselves."""
    radius = _radius(torch.empty(shape))
    return _low(torch.ones_like(radius), radius)


def images_low(images: Tensor) -> float:
    """The share of the energy of uint8 images [N, C, H, W] at low frequencies, over all of them."""
    energy = sum((_energy(image / 255) for image in images), start=torch.zeros(images.shape[-2:], dtype=torch.float64))
    return _low(energy, _radius(images))


def alignments(deltas: Tensor, directions: Tensor, level: float) -> list[tuple[float, float]]:
    """Of every pair of images: their cosine, and the |cosine| that a share of random-phase copies of the first stays
    below.

    A copy has the energy of the first image at every frequency and other phases; its product with the second image is
    taken over the frequencies (Parseval), so that no copy has to be made.
    """
    scale = (deltas.flatten(1).norm(dim=1) * directions.flatten(1).norm(dim=1)).clamp_min(1e-300)
    cosines = (deltas * directions).flatten(1).sum(1) / scale
    products = (torch.fft.fft2(deltas) * torch.fft.fft2(directions).conj()).sum(1).flatten(1)  # [D, H W], all channels
    random = torch.randn(CONTROLS, *deltas.shape[-2:], generator=generator("random phases"), dtype=torch.float64)
    controls = []
    for part in random.split(100):
        spin = torch.fft.fft2(part).flatten(1)
        spin = spin / spin.abs()  # of a real image: the copies are real too; one for all channels keeps their colours
        controls.append((spin @ products.T).real / products.shape[1])
    chances = (torch.cat(controls) / scale).abs().quantile(level, dim=0)
    return list(zip(cosines.tolist(), chances.tolist(), strict=True))


def _low(energy: Tensor, radius: Tensor) -> float:
    """The share of energy per frequency at those up to LOW, without frequency zero: a mean level is no pattern."""
    varying = energy[radius > 0].sum().clamp_min(1e-300)
    return float(energy[(radius > 0) & (radius <= LOW)].sum() / varying)


def _energy(image: Tensor) -> Tensor:
    return torch.fft.fft2(image.double()).abs().square().sum(0)


def _radius(image: Tensor) -> Tensor:
    """The frequency of every coefficient, in cycles per pixel."""
    height, width = image.shape[-2:]
    vertical, horizontal = (torch.fft.fftfreq(n, dtype=torch.float64) for n in (height, width))
    return torch.hypot(vertical[:, None], horizontal[None])
