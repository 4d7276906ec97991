"""Pictures: what the domains look like, and what an algorithm adds to them."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from domainwise.analysis.theory import Gap
from domainwise.data.environments import Environments
from domainwise.data.images.decode import read
from domainwise.data.sources.check import Check
from domainwise.report.canvas import grid, headline, plain, save, show


def domain_samples(environments: Environments, path: Path, columns: int = 10) -> None:
    """One row of images per domain: one of each class where there are enough."""
    rows = []
    for domain in environments.domains:
        members = environments.rows(domain)
        labels = environments.labels[members]
        picks = [
            members[labels == c % len(environments.classes)][c // len(environments.classes)] for c in range(columns)
        ]
        rows.append(environments.images[torch.stack(picks)])
    figure, axes = grid(len(rows), columns)
    for domain, row, line in zip(environments.domains, rows, axes, strict=True):
        for image, axis in zip(row, line, strict=True):
            show(axis, image / 255)
        line[0].set_ylabel(domain, rotation=0, ha="right", va="center")
    headline(figure, f"{environments.name}: the same classes in every domain")
    save(figure, path)


def folder_samples(found: Check, path: Path, most: int = 10) -> None:
    """The first readable image of every class in every domain, as many as a sheet holds; "none" where there is none."""
    first: dict[tuple[str, str], Path] = {}
    for picture in found.facts:
        first.setdefault((picture.domain, picture.label), picture.file)
    domains, classes = found.folder.domains[:most], found.folder.classes[:most]
    figure, axes = grid(len(domains), len(classes))
    for domain, line in zip(domains, axes, strict=True):
        for label, axis in zip(classes, line, strict=True):
            file = first.get((domain, label))
            image = torch.from_numpy(read(file, 128)) / 255 if file else torch.ones(3, 128, 128)
            show(axis, image, plain(label, 14) if domain == domains[0] else "")
            if file is None:
                axis.text(64, 64, "none", ha="center", va="center", color="grey")
        line[0].set_ylabel(plain(domain, 20), rotation=0, ha="right", va="center")
    left_out = len(found.folder.domains) > most or len(found.folder.classes) > most
    headline(
        figure,
        f"{plain(found.folder.name, 40)}: one image per domain and class{', the first of each' if left_out else ''}",
    )
    save(figure, path)


def perturbations(environments: Environments, train_domains: tuple[str, ...], delta: Tensor, path: Path) -> None:
    """Per training domain: its mean image, the perturbation learned for it (scaled to full range), and their sum."""
    figure, axes = grid(len(train_domains), 3, size=1.5)
    shared = delta.expand(len(train_domains), *delta.shape[1:])[:, 0]
    for domain, d, line in zip(train_domains, shared, axes, strict=True):
        centre = environments.images[environments.rows(domain)].float().mean(0) / 255
        scale = d.abs().max().clamp_min(1e-12)
        pictures = (centre, 0.5 + d / (2 * scale), (centre + d * environments.std).clamp(0, 1))
        titles = ("mean image", f"perturbation, |.|₂ = {float(d.norm()):.2f}", "sum")
        for picture, title, axis in zip(pictures, titles, line, strict=True):
            show(axis, picture, title)
        line[0].set_ylabel(domain, rotation=0, ha="right", va="center")
    headline(figure, f"{environments.name}: one perturbation per training domain")
    save(figure, path)


def linearisation_gaps(gaps: Sequence[Gap], path: Path) -> None:
    """Log-log: every gap against the radius, beside a line of slope two."""
    figure, ((axis,),) = grid(1, 1, size=4.0)
    for gap in gaps:
        axis.loglog(gap.radii, gap.gaps, marker="o", markersize=3, label=f"{gap.name}: order {gap.order:.2f}")
    radii = gaps[0].radii
    axis.loglog(radii, [gaps[0].gaps[0] * (eps / radii[0]) ** 2 for eps in radii], "k--", linewidth=1, label="slope 2")
    axis.set(xlabel="radius eps", ylabel="gap", title="true inner maximum − (risk + eps · penalty)")
    axis.legend(fontsize=8)
    save(figure, path)
