"""Pictures of data and models: samples of a folder, heatmaps, audits, perturbations, shift, linearisation gaps."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from domainwise.analysis.attention import AttentionComparison
from domainwise.analysis.audit import Audit
from domainwise.analysis.perturbations import LOW, Perturbations
from domainwise.analysis.shift import DatasetShift, profile
from domainwise.analysis.theory import LinearisationGap
from domainwise.data.images.decode import read
from domainwise.data.sources.check import Check
from domainwise.reports.style import (
    INK,
    LIGHT,
    NEARLY_WHITE,
    RIGHT,
    SMALL,
    SOFT,
    WRONG,
    footnote,
    grid,
    headline,
    in_style,
    plain,
    save,
)

WRITABLE = 12
"""Columns up to which every cell shows its number."""
METHODS = {"grad-cam": "Grad-CAM", "hires-cam": "HiResCAM", "rollout": "attention roll-out"}
BRIGHTEST = 0.9
"""Where the colour map ends: beyond, its red darkens again."""
TRAIN, TEST = LIGHT[1], LIGHT[2]


def colours(image: Tensor) -> Tensor:
    """An image [C, H, W] of one, two (as red and green) or three channels as [H, W, 3]."""
    image = image.cpu()
    if image.shape[0] == 1:
        image = image.expand(3, -1, -1)
    elif image.shape[0] == 2:
        image = torch.cat([image, torch.zeros_like(image[:1])])
    return image.permute(1, 2, 0)


def show(axis: Axes, image: Tensor, title: str = "") -> None:
    """An image [C, H, W] in [0, 1], without ticks."""
    axis.imshow(colours(image).numpy())
    _bare(axis)
    axis.set_title(title, fontsize=SMALL, weight="normal", loc="center")


def _bare(axis: Axes) -> None:
    """Without ticks and frame."""
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def folder_samples(check: Check, path: Path, most: int = 10) -> None:
    """Writes a picture: the first readable image of every class in every domain, as many as a sheet holds."""
    save(_folder_rows(check, most), path)


@in_style
def _folder_rows(check: Check, most: int) -> Figure:
    first: dict[tuple[str, str], Path | str] = {}
    for picture in check.facts:
        first.setdefault((picture.domain, picture.label), picture.file)
    domains, classes = check.folder.domains[:most], check.folder.classes[:most]
    figure, axes = grid(len(domains), len(classes))
    for domain, line in zip(domains, axes, strict=True):
        for label, axis in zip(classes, line, strict=True):
            file = first.get((domain, label))
            image = torch.from_numpy(read(file, 128)) / 255 if file else torch.ones(3, 128, 128)
            show(axis, image, plain(label, 14) if domain == domains[0] else "")
            if file is None:
                axis.text(64, 64, "none", ha="center", va="center", color=SOFT)
        line[0].set_ylabel(plain(domain, 20), rotation=0, ha="right", va="center")
    left_out = len(check.folder.domains) > most or len(check.folder.classes) > most
    headline(
        figure,
        f"{plain(check.folder.name, 40)}: one image per domain and class{', the first of each' if left_out else ''}",
    )
    return figure


def linearisation_gaps(gaps: Sequence[LinearisationGap], path: Path) -> None:
    """Writes a figure: log-log, every gap against the radius, beside a line of slope two."""
    save(_gaps(gaps), path)


@in_style
def _gaps(gaps: Sequence[LinearisationGap]) -> Figure:
    figure, ((axis,),) = grid(1, 1, size=4.0)
    for number, gap in enumerate(gaps):
        colour = LIGHT[1 + number % 7]
        label = f"{gap.name}: order {gap.order:.2f}"
        axis.loglog(gap.radii, gap.gaps, marker="o", markersize=3, color=colour, label=label)
    radii = gaps[0].radii
    axis.loglog(
        radii,
        [gaps[0].gaps[0] * (eps / radii[0]) ** 2 for eps in radii],
        "--",
        color=INK,
        linewidth=1,
        label="slope 2",
    )
    axis.set(xlabel="radius eps", ylabel="gap", title="true inner maximum − (risk + eps · penalty)")
    axis.legend()
    return figure


@in_style
def heatmap_grid(comparison: AttentionComparison) -> Figure:
    """Red areas speak for the predicted class, which stands below each heatmap, in red where it is wrong.

    Above each column, where the object's outline is known: the share of the heat inside it, over the whole domain.
    """
    models, images = comparison.models, comparison.images
    figure, axes = grid(len(images), 1 + len(models), size=1.1, margins=(0.5, 0.9))
    for number, (image, line) in enumerate(zip(images, axes, strict=True)):
        truth = None if comparison.labels is None else int(comparison.labels[number])
        show(line[0], image / 255)
        if truth is not None:
            line[0].set_xlabel(plain(comparison.classes[truth], 16), fontsize=SMALL, labelpad=2)
        for model, axis in zip(models, line[1:], strict=True):
            heat = model.attention.heat[number].cpu()
            scaled = heat / heat.max().clamp_min(1e-12)
            grey = colours(image.cpu().float().mean(0, keepdim=True) / 255).numpy()
            axis.imshow(0.45 * grey + 0.55 * colormaps["turbo"](BRIGHTEST * scaled.numpy())[..., :3])
            _bare(axis)
            predicted = int(model.attention.predicted[number])
            colour = INK if truth is None else RIGHT if predicted == truth else WRONG
            axis.set_xlabel(plain(comparison.classes[predicted], 16), fontsize=SMALL, labelpad=2, color=colour)
    axes[0][0].set_title("image", loc="center")
    for model, axis in zip(models, axes[0][1:], strict=True):
        axis.set_title(
            str(model.method) if model.inside is None else f"{model.method}\n{model.inside.mean:.1f} % inside",
            loc="center",
        )
    headline(figure, f"{METHODS[comparison.method]} {_where(comparison)}")
    inside = "; inside: share of the heat on the object" if any(one.inside for one in models) else ""
    judged = "" if comparison.labels is None else ", green if right and red if wrong"
    footnote(figure, f"Red areas speak for the prediction below{judged}{inside}.")
    return figure


def _where(comparison: AttentionComparison) -> str:
    dataset = plain(comparison.dataset)
    if comparison.unseen is None:
        return f"of models trained on {dataset}"
    return f"on {dataset}, {plain(comparison.unseen)} unseen"


@in_style
def audit_figure(audits: Sequence[Audit]) -> Figure:
    """One row per model: the accuracy per class and domain (the worst pair framed), and the probe's confusions."""
    figure, axes = grid(len(audits), 2, size=2.2, margins=(4.4, 0.4), widths=(2.2, 1))
    for one, (left, right) in zip(audits, axes, strict=True):
        domains = [score.domain for score in one.scores]
        names = [score.label for score in one.scores]
        cells = [[*(100 * score.per_class).tolist(), 100 * score.accuracy] for score in one.scores]
        _cells(left, cells, names, [*one.classes, "all"], "Blues")
        left.set_title(plain(f"{one.method}: accuracy per class, %", 70), loc="left")
        if one.worst:
            corner = one.classes.index(one.worst.label) - 0.5, domains.index(one.worst.domain) - 0.5
            left.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=LIGHT[2], linewidth=2))
        if one.probe is None:
            right.set_axis_off()
            continue
        confusion = (100 * one.probe.confusion).tolist()
        _cells(right, confusion, list(one.probe.domains), list(one.probe.domains), "Greys")
        accuracy, chance = 100 * one.probe.accuracy, 100 * one.probe.chance
        right.set_title(f"domain from features\n{accuracy:.0f} % (chance {chance:.0f})", loc="left")
    return figure


def _cells(axis: Axes, values: Sequence[Sequence[float]], rows: list[str], columns: list[str], colours: str) -> None:
    axis.imshow(values, cmap=colours, vmin=0, vmax=100, aspect="auto")
    axis.grid(visible=False)
    axis.set_xticks(range(len(columns)), [plain(name, 20) for name in columns])
    if max(map(len, columns)) > 6:
        axis.tick_params("x", rotation=30)
    axis.set_yticks(range(len(rows)), [plain(name, 30) for name in rows])
    if len(columns) > WRITABLE:
        return
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            if not math.isnan(value):
                colour = NEARLY_WHITE if value > 60 else "black"
                axis.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=SMALL, color=colour)


@in_style
def perturbation_figure(measured: Perturbations) -> Figure:
    """Mean image, perturbation (scaled to full range), a sample before and after, and the two spectra."""
    figure, axes = grid(len(measured.domains), 5, size=1.4, margins=(1.8, 0.7))
    for one, line in zip(measured.domains, axes, strict=True):
        scale = one.delta.abs().max().clamp_min(1e-12)
        titles = ("mean image", f"perturbation, |·|₂ = {one.norm:.2f}", "a sample", "the sample perturbed")
        pictures = (one.mean_image, 0.5 + one.delta / (2 * scale), one.sample, one.perturbed)
        for axis, picture, title in zip(line, pictures, titles, strict=False):
            show(axis, picture, title)
        line[0].set_ylabel(plain(one.domain, 20), rotation=0, ha="right", va="center")
        axis = line[4]
        curves = ((one.mean_spectrum, "mean image", LIGHT[0]), (one.spectrum, "perturbation", LIGHT[2]))
        for spectrum, label, colour in curves:
            axis.plot(
                spectrum.frequencies,
                100 * spectrum.energy.clamp_min(1e-6),
                label=label,
                color=colour,
                linewidth=1.4,
            )
        axis.axvline(LOW, color=SOFT, linewidth=0.6, linestyle=":")
        axis.set(yscale="log", ylim=(1e-2, 150), xlim=(0, 0.5))
        axis.minorticks_off()  # each would cost as much time as a label
        axis.set_box_aspect(1)
        axis.set_title(
            f"cosine {one.cosine:+.2f} (chance ±{one.chance:.2f})", fontsize=SMALL, weight="normal", loc="center"
        )
    first = axes[0][4]
    for height, label, colour in ((0.95, "perturbation", LIGHT[2]), (0.82, "mean image", LIGHT[0])):
        words = first.text(0.97, height, label, size=SMALL, ha="right", va="top", transform=first.transAxes)
        words.set_color(colour)
    axes[-1][4].set_xlabel("cycles per pixel", fontsize=SMALL)
    axes[0][4].set_ylabel("% of the energy", fontsize=SMALL)
    scope = "one perturbation for all domains" if measured.universal else "one perturbation per training domain"
    headline(figure, f"{measured.method} on {plain(measured.dataset)}: {scope} (eps {measured.eps:g})")
    return figure


@in_style
def shift_figure(measured: DatasetShift) -> Figure:
    """Per unseen domain, along the direction in which the features vary most: both densities, and p(y|z) on each side.

    Shaded: where only one of them has mass, which is diversity shift. Where both have, the distance of the two lines at
    the right is correlation shift. The first seed is drawn; the numbers are means over all.
    """
    first = {shift.unseen: shift for shift in reversed(measured.shifts)}
    figure, axes = grid(len(measured.unseen), 2, size=2.0, margins=(3.6, 0.9))
    for unseen, (left, right) in zip(measured.unseen, axes, strict=True):
        drawn = profile(first[unseen].sides, len(measured.classes))
        at, p, q = drawn.at.numpy(), drawn.p.numpy(), drawn.q.numpy()
        for density, colour, label in ((p, TRAIN, "training"), (q, TEST, "unseen")):
            left.plot(at, density, color=colour, linewidth=1.5, label=label)
        for density, other, colour in ((p, q, TRAIN), (q, p, TEST)):
            alone = other < 0.01 * other.max()
            left.fill_between(at, 0, density, where=alone, color=colour, alpha=0.25, linewidth=0)
        for line, colour in ((drawn.p_label, TRAIN), (drawn.q_label, TEST)):
            right.plot(at, line.numpy(), color=colour, linewidth=1.5)
        left.set_title(f"diversity {measured.mean('diversity', unseen):.2f}")
        right.set_title(f"correlation {measured.mean('correlation', unseen):.2f}")
        left.set_ylabel(f"{plain(unseen, 20)} unseen\n\np(z), q(z)", fontsize=SMALL)
        right.set_ylabel(f"p(y = {plain(measured.classes[drawn.label], 16)} | z)", fontsize=SMALL)
        right.set_ylim(-0.03, 1.03)
        left.set_ylim(bottom=0)
        left.set_yticks([])
        for axis in (left, right):
            axis.set_xlim(at[0], at[-1])
    axes[0][0].legend()
    for axis in axes[-1]:
        axis.set_xlabel("main direction of the features z", fontsize=SMALL)
    headline(figure, f"{plain(measured.dataset)}: training against unseen domains")
    return figure
