"""Figures of hyper-parameters: radius and step size, the two norms, batch size, radius. A panel per algorithm."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes

from domainwise.core.phrasing import counted
from domainwise.protocol.selection import Column, Curve
from domainwise.protocol.statistics import AVERAGE, average, choices, estimate, paired
from domainwise.reports.figures.claims import joined
from domainwise.reports.figures.end_labels import End, label_ends
from domainwise.reports.figures.measure import CONFIDENCE, Fit, Point, adjusted, levels, points
from domainwise.reports.figures.request import Drawing, Request, TooFew
from domainwise.reports.style import COLUMNS, HAIR, LIGHT, NEARLY_WHITE, few_ticks, line_with_band, panels

CLAIMED = 3
"""Panels up to which a title names each."""
RASTER = 1000
"""More dots than these become pixels, also in a vector format."""


def eps_alpha(request: Request) -> Drawing:
    """Accuracy by radius and step size, mean over runs and unseen domains, with the domains' difficulty taken out."""
    by_ball = _by_ball(request, ("eps", "alpha"))
    usable = {
        title: runs
        for title, runs in by_ball.items()
        if min(len(set(levels(p.number(name) for p in runs).values())) for name in ("eps", "alpha")) > 1
    }
    if not usable:
        raise TooFew(
            request, "runs of one adversarial method with two radii and two step sizes", algorithms="DAT", hparams=20
        )
    figure, axes = panels(list(usable), height=3.4)
    sentences = []
    best_of = {}
    by_panel = {title: _cells(runs) for title, runs in usable.items()}
    everything = [cell for cells in by_panel.values() for cell in cells.values()]
    (low, high), counts = _range(mean for mean, _ in everything), {n for _, n in everything}
    for axis, (title, cells) in zip(axes, by_panel.items(), strict=True):
        _heatmap(axis, cells, low, high, counts=len(counts) > 1)
        (eps, alpha), (best, _) = max(cells.items(), key=lambda item: item[1][0])
        best_of[title] = (best, f"eps {eps:.2g} and alpha {alpha:.2g}")
        sentences.append(f"{title}: best around eps {eps:.2g}, alpha {alpha:.2g}, {best:.1f} %")
    for axis in axes[::COLUMNS]:
        axis.set(ylabel="step size alpha")
    top = max(best_of, key=lambda title: best_of[title][0])
    claim = f"the highest mean, {best_of[top][0]:.1f} %, is that of {top} with {best_of[top][1]}"
    caption = (
        f"Accuracy on the unseen domain, %, mean over {'n' if len(counts) > 1 else counts.pop()} runs (trials x "
        f"unseen domains) per cell, with the domains' difficulty taken out. {_selected(request)}"
    )
    return Drawing(figure, claim, caption, sentences)


def _selected(request: Request) -> str:
    """How many trials and domains there are, and by which rule each run was evaluated."""
    return f"{request.n(request.curves)}, each at its step by {request.rule} validation."


def _cells(runs: Sequence[Point]) -> dict[tuple[float, float], tuple[float, int]]:
    """{(radius, step size): (mean accuracy, runs)}."""
    eps, alpha = (levels(point.number(name) for point in runs) for name in ("eps", "alpha"))
    grouped: dict[tuple[float, float], list[float]] = {}
    for point, value in zip(runs, adjusted(runs), strict=True):
        grouped.setdefault((eps[point.number("eps")], alpha[point.number("alpha")]), []).append(value)
    return {key: (float(np.mean(values)), len(values)) for key, values in grouped.items()}


def _range(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return min(known), max(known)


def _heatmap(
    axis: Axes, cells: dict[tuple[float, float], tuple[float, int]], low: float, high: float, *, counts: bool
) -> None:
    """Colours from low to high; with counts, every cell also shows its number of runs."""
    columns, rows = (sorted({key[i] for key in cells}) for i in (0, 1))
    picture = np.full((len(rows), len(columns)), np.nan)
    for (eps, alpha), (mean, _) in cells.items():
        picture[rows.index(alpha), columns.index(eps)] = mean
    axis.grid(False)
    axis.pcolormesh(picture, cmap="viridis", vmin=low, vmax=high, edgecolors=axis.get_facecolor(), linewidth=1.5)
    for (eps, alpha), (mean, n) in sorted(cells.items()):
        ink = "black" if mean > low + 0.6 * (high - low) else NEARLY_WHITE
        position = columns.index(eps) + 0.5, rows.index(alpha) + 0.5
        axis.annotate(
            f"{mean:.1f}\nn = {n}" if counts else f"{mean:.1f}", position, ha="center", va="center", color=ink
        )
    axis.set_xticks([i + 0.5 for i in range(len(columns))], [f"{value:.2g}" for value in columns])
    axis.set_yticks([i + 0.5 for i in range(len(rows))], [f"{value:.2g}" for value in rows])
    axis.set(xlabel="radius eps")


def norms(request: Request) -> Drawing:
    """The best of each norm's search, per unseen domain and on average: mean and standard error over trials."""
    by_algorithm: dict[str, dict[str, list[Curve]]] = {}
    for curve in request.curves:
        if "norm" in curve.run.hparams and not curve.average and not curve.run.combination:
            by_norm = by_algorithm.setdefault(curve.run.algorithm, {})
            by_norm.setdefault(str(curve.run.hparams["norm"]), []).append(curve)
    usable = {name: by_norm for name, by_norm in by_algorithm.items() if len(by_norm) > 1}
    if not usable:
        raise TooFew(request, "runs of one adversarial method with both norms", algorithms="DAT", hparam="norm=linf")
    figure, axes = panels(list(usable), height=3.4)
    sentences, claims = [], []
    columns = request.columns
    ends: list[End] = []
    for axis, (title, by_norm) in zip(axes, usable.items(), strict=True):
        by_trial, ends = [], []
        for i, norm in enumerate(sorted(by_norm)):
            scores = _best(by_norm[norm], request.rule)
            by_trial.append(scores)
            shown = [estimate(list(scores[c].values())) if c in scores else None for c in columns]
            shown.append(average(scores, columns))
            known = [(x, e) for x, e in enumerate(shown) if e is not None]
            places = [x + 0.24 * (i - (len(by_norm) - 1) / 2) for x, _ in known]
            means, errors = [e.mean for _, e in known], [e.bar for _, e in known]
            colour = LIGHT[1 + i]
            axis.errorbar(places, means, yerr=errors, label=norm, fmt="o", color=colour, capsize=2.5)
            ends += [End(norm, colour, means[-1])] if means else []
            if shown[-1] is not None:
                sentences.append(f"{title}, {norm}: {shown[-1]} % on average ({counted(shown[-1].n, 'trial')})")
        gap = paired(by_trial[0], by_trial[1])
        if gap is not None:
            first, second = sorted(by_norm)[:2]
            claims.append(f"{first} is {gap.verdict} {second} for {title}")
        axis.set_xticks(range(len(columns) + 1), [*map(str, columns), str(AVERAGE)], rotation=30, ha="right")
        axis.axvline(len(columns) - 0.5, color=HAIR)
    axes[0].set(ylabel="accuracy on the unseen domain, %")
    label_ends(axes, ends if len(ends) > 1 else [])
    claim = joined(claims) if 0 < len(claims) <= CLAIMED else "the two norms, each with the best of its own search"
    caption = (
        "Dots are means, bars ± one standard error over trials; every norm is selected from its own runs. "
        f"{request.n(request.curves)}, selected by {request.rule} validation."
    )
    return Drawing(figure, claim, caption, sentences)


def _best(curves: Sequence[Curve], rule: str) -> dict[Column, dict[int, float]]:
    """{column: {trial: accuracy}} of the rule's choices among all these runs, whatever search they belong to."""
    merged: dict[Column, dict[int, float]] = {}
    pooled = [replace(curve, run=replace(curve.run, variant="")) for curve in curves]
    for by_column in choices(pooled, rule).values():
        for column, by_trial in by_column.items():
            merged[column] = {trial: 100 * choice.accuracy for trial, choice in by_trial.items()}
    return merged


def batch_size(request: Request) -> Drawing:
    """The paper's scatter: accuracy against batch size, per unseen domain a regression on its logarithm with a band."""
    by_algorithm: dict[str, list[Point]] = {}
    for point in points(request.curves, request.rule):
        if "batch_size" in point.run.hparams:
            by_algorithm.setdefault(point.run.algorithm, []).append(point)
    usable = {
        name: runs
        for name, runs in by_algorithm.items()
        if any(_fit(part) for part in _by_domain(request, runs).values())
    }
    if not usable:
        raise TooFew(request, "three runs of one method with different batch sizes", algorithms="DAT", hparams=20)
    figure, axes = panels(list(usable), height=3.6)
    sentences = []
    fits: dict[str, list[Fit]] = {}
    ends: list[End] = []
    for axis, (title, runs) in zip(axes, usable.items(), strict=True):
        ends = []
        for i, (domain, part) in enumerate(_by_domain(request, runs).items()):
            colour = LIGHT[1 + i % 7]
            sizes = [point.number("batch_size") for point in part]
            _dots(axis, sizes, part, colour)
            if fit := _fit(part):
                x = np.linspace(np.log2(min(sizes)), np.log2(max(sizes)), 50)
                middle, half = fit.line(x), fit.half_width(x)
                line_with_band(axis, list(2**x), list(middle), list(half), colour, domain)
                fits.setdefault(title, []).append(fit)
                ends.append(End(domain, colour, float(middle[-1])))
                sentences.append(
                    f"{title} on {domain}: {fit.slope:+.2f} ± {fit.slope_half_width:.2f} points for every doubling of "
                    f"the batch ({100 * CONFIDENCE:.0f} % confidence, {fit.n} runs)"
                )
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set(xlabel="batch size per domain")
    axes[0].set(ylabel="accuracy on the unseen domain, %")
    low, high = _range(point.accuracy for runs in usable.values() for point in runs)
    room = 0.08 * (high - low) or 1.0
    for axis in axes:
        axis.set_ylim(low - room, high + room)
    label_ends(axes, ends)
    shown = [curve for curve in request.curves if curve.run.algorithm in usable]
    caption = (
        f"Dots are runs, lines least squares on the logarithm of the batch size, bands their {100 * CONFIDENCE:.0f} % "
        f"confidence. {request.n(shown)}, each at its step by {request.rule} validation."
    )
    return Drawing(figure, _batch_claim(fits), caption, sentences)


def _batch_claim(fits: dict[str, list[Fit]]) -> str:
    """On how many unseen domains accuracy clearly falls, or rises, with the size of the batch."""
    down = {name: sum(fit.slope + fit.slope_half_width < 0 for fit in own) for name, own in fits.items()}
    up = {name: sum(fit.slope - fit.slope_half_width > 0 for fit in own) for name, own in fits.items()}
    if len(fits) > CLAIMED or (any(down.values()) and any(up.values())):
        return "accuracy against batch size"
    if not any(down.values()) and not any(up.values()):
        return "accuracy has no clear trend with batch size"
    clear, verb = (down, "lower") if any(down.values()) else (up, "raise")
    first, *others = clear
    parts = [f"{clear[first]} of {len(fits[first])} unseen domains with {first}"]
    parts += [f"{clear[name]} of {len(fits[name])} with {name}" for name in others]
    return f"larger batches clearly {verb} accuracy on {joined(parts)}"


def _fit(part: Sequence[Point]) -> Fit | None:
    return Fit.of([np.log2(point.number("batch_size")) for point in part], [point.accuracy for point in part])


def radius(request: Request) -> Drawing:
    """Accuracy against the radius: every run a dot, and per unseen domain means ± standard errors at its levels."""
    by_ball = _by_ball(request, ("eps",))
    usable = {title: runs for title, runs in by_ball.items() if len({p.number("eps") for p in runs}) > 1}
    if not usable:
        raise TooFew(request, "runs of one adversarial method with two radii", algorithms="DAT", hparams=20)
    figure, axes = panels(list(usable), height=3.4)
    bests = []
    ends: list[End] = []
    for axis, (title, runs) in zip(axes, usable.items(), strict=True):
        level = levels(point.number("eps") for point in runs)
        bests.append(f"{_best_level(runs, level):.2g} for {title}")
        ends = []
        for i, (domain, part) in enumerate(_by_domain(request, runs).items()):
            colour = LIGHT[1 + i % 7]
            _dots(axis, [point.number("eps") for point in part], part, colour)
            grouped: dict[float, list[float]] = {}
            for point in part:
                grouped.setdefault(level[point.number("eps")], []).append(point.accuracy)
            shown = {eps: estimate(grouped[eps]) for eps in sorted(grouped)}
            means, errors = [e.mean for e in shown.values()], [e.bar for e in shown.values()]
            axis.errorbar(
                list(shown), means, yerr=errors, color=colour, marker="o", markersize=4, capsize=2, label=domain
            )
            ends.append(End(domain, colour, means[-1]))
        axis.set_xscale("log")
        few_ticks(axis.xaxis)
        axis.set(xlabel="radius eps")
    axes[0].set(ylabel="accuracy on the unseen domain, %")
    label_ends(axes, ends)
    claim = f"the radius with the highest mean accuracy is {joined(bests)}"
    caption = f"Small dots are runs, large dots means with bars of ± one standard error over runs. {_selected(request)}"
    return Drawing(figure, claim if len(bests) <= CLAIMED else "accuracy against the radius", caption)


def _best_level(runs: Sequence[Point], level: dict[float, float]) -> float:
    """The radius with the highest mean over runs, with the domains' difficulty taken out."""
    grouped: dict[float, list[float]] = {}
    for point, value in zip(runs, adjusted(runs), strict=True):
        grouped.setdefault(level[point.number("eps")], []).append(value)
    return max(grouped, key=lambda eps: float(np.mean(grouped[eps])))


def _dots(axis: Axes, x: Sequence[float], part: Sequence[Point], colour: str) -> None:
    """One per run."""
    accuracies = [point.accuracy for point in part]
    axis.scatter(x, accuracies, s=11, alpha=0.45, color=colour, linewidths=0, rasterized=len(part) > RASTER)


def _by_ball(request: Request, needed: Iterable[str]) -> dict[str, list[Point]]:
    """{algorithm and norm: runs}: radii of different norms cannot be compared."""
    by_ball: dict[str, list[Point]] = {}
    for point in points(request.curves, request.rule):
        values = point.run.hparams
        if "norm" in values and all(values.get(name) for name in needed):
            by_ball.setdefault(f"{point.run.algorithm}, {values['norm']}", []).append(point)
    return by_ball


def _by_domain(request: Request, runs: Sequence[Point]) -> dict[str, list[Point]]:
    """In the order of the table's columns."""
    order = list(dict.fromkeys(column.unseen for column in request.columns))
    return {domain: part for domain in order if (part := [point for point in runs if point.unseen == domain])}
