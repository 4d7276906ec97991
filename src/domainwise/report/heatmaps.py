"""Heatmaps side by side: one row per image, one column per model (the paper's heatmap figures)."""

from matplotlib import colormaps
from matplotlib.figure import Figure

from domainwise.analysis.attention import Comparison
from domainwise.report.canvas import colours, grid, headline, plain, show

METHODS = {"grad-cam": "Grad-CAM", "hires-cam": "HiResCAM"}
BRIGHTEST = 0.9
"""Where the colour map ends: beyond, its red darkens again."""
RIGHT, WRONG = "#1a7f37", "#c62828"


def heatmap_grid(comparison: Comparison) -> Figure:
    """Red is where a model finds the class it predicts; that class is below each heatmap, red where it is wrong.

    Above each column, where the object's outline is known: the share of the heat inside it, over the whole domain.
    """
    sights, images = comparison.sights, comparison.images
    figure, axes = grid(len(images), 1 + len(sights), size=1.1, margins=(0.5, 0.9))
    for number, (image, line) in enumerate(zip(images, axes, strict=True)):
        truth = None if comparison.labels is None else int(comparison.labels[number])
        show(line[0], image / 255)
        if truth is not None:
            line[0].set_xlabel(plain(comparison.classes[truth], 16), fontsize=8, labelpad=2)
        for sight, axis in zip(sights, line[1:], strict=True):
            heat = sight.attention.heat[number].cpu()
            scaled = heat / heat.max().clamp_min(1e-12)
            grey = colours(image.cpu().float().mean(0, keepdim=True) / 255).numpy()
            axis.imshow(0.45 * grey + 0.55 * colormaps["turbo"](BRIGHTEST * scaled.numpy())[..., :3])
            axis.set(xticks=[], yticks=[])
            predicted = int(sight.attention.predicted[number])
            colour = "black" if truth is None else RIGHT if predicted == truth else WRONG
            axis.set_xlabel(plain(comparison.classes[predicted], 16), fontsize=8, labelpad=2, color=colour)
    axes[0][0].set_title("image", fontsize=9)
    for sight, axis in zip(sights, axes[0][1:], strict=True):
        axis.set_title(
            sight.name if sight.inside is None else f"{sight.name}\n{sight.inside.mean:.1f} % inside", fontsize=9
        )
    headline(figure, f"{METHODS[comparison.method]} {_where(comparison)}", 10)
    return figure


def _where(comparison: Comparison) -> str:
    dataset = plain(comparison.dataset)
    if comparison.unseen is None:
        return f"of models trained on {dataset}"
    return f"on {dataset}, {plain(comparison.unseen)} unseen"
