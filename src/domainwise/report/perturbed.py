"""Perturbations as a figure: one row per training domain."""

from matplotlib.figure import Figure

from domainwise.analysis.perturbations import LOW, Perturbations
from domainwise.report.canvas import grid, headline, plain, show


def perturbation_figure(measured: Perturbations) -> Figure:
    """Mean image, perturbation (scaled to full range), a sample before and after, and the two spectra."""
    figure, axes = grid(len(measured.domains), 5, size=1.55, margins=(2.2, 0.7))
    for found, line in zip(measured.domains, axes, strict=True):
        scale = found.delta.abs().max().clamp_min(1e-12)
        titles = ("mean image", f"perturbation, |·|₂ = {found.norm:.2f}", "a sample", "the sample perturbed")
        pictures = (found.mean_image, 0.5 + found.delta / (2 * scale), found.sample, found.perturbed)
        for axis, picture, title in zip(line, pictures, titles, strict=False):
            show(axis, picture, title)
        line[0].set_ylabel(plain(found.domain, 20), rotation=0, ha="right", va="center", fontsize=9)
        axis = line[4]
        curves = ((found.mean_spectrum, "mean image", "0.55"), (found.spectrum, "perturbation", "#b2182b"))
        for spectrum, label, colour in curves:
            axis.plot(
                spectrum.frequencies, 100 * spectrum.energy.clamp_min(1e-6), label=label, color=colour, linewidth=1.4
            )
        axis.axvline(LOW, color="black", linewidth=0.6, linestyle=":")
        axis.set(yscale="log", ylim=(1e-2, 150), xlim=(0, 0.5))
        axis.tick_params(labelsize=6)
        axis.set_box_aspect(1)
        axis.set_title(f"cosine {found.cosine:+.2f} (chance ±{found.chance:.2f})", fontsize=8)
    axes[0][4].legend(fontsize=6, frameon=False)
    axes[-1][4].set_xlabel("cycles per pixel", fontsize=7)
    axes[0][4].set_ylabel("% of the energy", fontsize=7)
    scope = "one perturbation for all domains" if measured.universal else "one perturbation per training domain"
    headline(figure, f"{measured.method} on {plain(measured.dataset)}: {scope} (eps {measured.eps:g})", 10)
    return figure
