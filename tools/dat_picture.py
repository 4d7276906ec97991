"""One picture that explains DAT: images of each domain, one perturbation per training domain, and their sum."""

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from domainwise.data.environments import Environments
from domainwise.protocol.runs import Run
from domainwise.reports.pictures import show
from domainwise.reports.style import INK, LIGHT, SOFT, TEXT, WIDTH, footnote, headline, in_style, plain

ROWS = ("what the camera saw", "one perturbation\nper training domain", "what the model\ntrains on")
LABELS, GAP, SIDE = 1.72, 0.06, 0.95
"""Inches: the column of the rows' names, between images, and the side of a perturbation."""
TOP, HEADER, SIGN, BOTTOM = 0.36, 0.28, 0.24, 0.56
"""Inches: title, names of domains, a plus or an arrow between rows, and caption."""
SAMPLES = 3
"""Images per domain."""
MOST = 6
"""Domains that are shown: the first of those trained on, and of the others."""
STRENGTH = 0.5
"""Of the range of an image: as strong as the largest perturbation is shown."""


@in_style
def dat_picture(environments: Environments, run: Run, delta: Tensor) -> Figure:
    """Of a run of DAT, or of UAT, with its perturbations [E or 1, 1, C, H, W]: a column per domain.

    Perturbations are too small to be seen: alone they are shown in full range, and added to images amplified by the
    factor that the caption names.
    """
    trained = run.train_domains[: MOST - 1]
    unseen = [domain for domain in environments.domains if domain not in run.train_domains][: MOST - len(trained)]
    shared = delta.expand(len(run.train_domains), *delta.shape[1:])[: len(trained), 0] * environments.std
    factor = _rounded(STRENGTH / float(shared.abs().max().clamp_min(1e-12)))
    column = (WIDTH - LABELS) / (len(trained) + len(unseen))
    side = (column - 0.2 - (SAMPLES - 1) * GAP) / SAMPLES
    tops = [TOP + HEADER, TOP + HEADER + side + SIGN, TOP + HEADER + side + 2 * SIGN + SIDE]
    height = tops[2] + side + BOTTOM
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)

    def place(x: float, y: float, size: float) -> Axes:
        return figure.add_axes((x / WIDTH, 1 - (y + size) / height, size / WIDTH, size / height))

    def words(x: float, y: float, text: str, colour: str = INK, **options: object) -> None:
        figure.text(x / WIDTH, 1 - y / height, text, color=colour, va="center", **options)  # type: ignore[arg-type]

    for top, size, name in zip(tops, (side, SIDE, side), ROWS, strict=True):
        words(0.1, top + size / 2, name, weight="bold")
    for number, domain in enumerate((*trained, *unseen)):
        left = LABELS + number * column
        middle = left + (SAMPLES * side + (SAMPLES - 1) * GAP) / 2
        images = _samples(environments, domain)
        is_seen = number < len(trained)
        name = plain(domain, 16) if is_seen else f"{plain(domain, 16)}: unseen"
        words(middle, TOP + HEADER / 2, name, INK if is_seen else LIGHT[2], ha="center", weight="bold")
        for i, image in enumerate(images):
            show(place(left + i * (side + GAP), tops[0], side), image)
        if not is_seen:
            words(middle, tops[1] + SIDE / 2, "no perturbation:\nnever trained on", SOFT, ha="center")
            words(middle, tops[2] + side / 2, "the model\nis tested here", LIGHT[2], ha="center")
            continue
        added = factor * shared[number]
        words(middle, tops[1] - SIGN / 2, "+", SOFT, ha="center", size=TEXT + 5)
        scale = shared[number].abs().max().clamp_min(1e-12)
        show(place(middle - SIDE / 2, tops[1], SIDE), 0.5 + shared[number] / (2 * scale))
        words(middle, tops[2] - SIGN / 2, "↓", SOFT, ha="center", size=TEXT + 3)
        for i, image in enumerate(images):
            show(place(left + i * (side + GAP), tops[2], side), (image + added).clamp(0, 1))
    one = (
        "one learned perturbation per training domain" if len(delta) > 1 else "one learned perturbation for all domains"
    )
    headline(figure, f"{run.algorithm}: {one}, added to all its images")
    ball = f"eps {run.hparams['eps']:g}, {run.hparams['norm']}"
    footnote(
        figure,
        f"Every step of training moves a perturbation to where the loss of its domain is higher. One run on "
        f"{plain(environments.name)} ({ball}, {run.steps} steps); perturbations alone are shown in full range, and "
        f"added to images {factor:g} times as strong as they are.",
    )
    return figure


def _samples(environments: Environments, domain: str) -> list[Tensor]:
    """The first image of each of the first classes, in [0, 1]."""
    members = environments.rows(domain)
    labels = environments.labels[members]
    picks = [members[labels == label][:1] for label in range(len(environments.classes))]
    return list(environments.images[torch.cat(picks)[:SAMPLES]].float() / 255)


def _rounded(factor: float) -> float:
    """To one digit, and at least 1."""
    return max(1.0, float(f"{factor:.0e}"))
