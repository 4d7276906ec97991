"""Figures from records alone, by name: `domainwise figure NAME DIR`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl

from domainwise.core.errors import UserError, unknown
from domainwise.data.catalogue import usual_selection
from domainwise.protocol.dataset_names import matching
from domainwise.reports.figures import ablations, over_time
from domainwise.reports.figures.methods import domains, draws, methods
from domainwise.reports.figures.request import Drawing, Request, TooFew
from domainwise.reports.style import SETTINGS, footnote, headline, plain
from domainwise.sweeps.collection import Collection
from domainwise.sweeps.completeness import Completeness
from domainwise.sweeps.tables import groups

FIGURES: dict[str, Callable[[Request], Drawing]] = {
    "methods": methods,
    "domains": domains,
    "curves": over_time.curves,
    "memory": over_time.memory,
    "draws": draws,
    "eps-alpha": ablations.eps_alpha,
    "radius": ablations.radius,
    "norms": ablations.norms,
    "batch-size": ablations.batch_size,
    "penalties": over_time.penalties,
}

TEXT_MOST = 2000
"""Characters of a title or a caption."""


def draw(
    name: str,
    folder: Path,
    collection: Collection,
    *,
    dataset: str | None = None,
    algorithms: Sequence[str] = (),
    rule: str | None = None,
) -> Drawing:
    """The figure of the largest experiment that has the runs for it, by its dataset's rule unless one is given.

    Its title and its caption are in the figure.
    """
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    everything = groups(collection)
    known = {curve.run.algorithm for group in everything for curve in group.curves}
    for absent in (one for one in algorithms if one not in known):
        raise unknown(f"algorithm in {folder}", absent, known)
    datasets = {group.experiment.dataset for group in everything}
    wanted = datasets if dataset is None else matching(dataset, datasets, folder)
    usable = [group for group in everything if group.experiment.dataset in wanted]
    if not usable:
        raise UserError(f"{folder}: no run there has an evaluation yet: wait for the first")
    missing: TooFew | None = None
    for group in sorted(usable, key=lambda group: -len(group.curves)):
        chosen = rule or usual_selection(group.experiment.dataset)
        try:
            with mpl.rc_context(SETTINGS):
                request = Request(folder, group, chosen, algorithms)
                drawing = FIGURES[name](request)
                titled = replace(drawing, title=f"{request.dataset}: {drawing.title}")
                return _labelled(titled, collection.completeness(group.incomplete))
        except TooFew as error:
            missing = missing or error
    assert missing is not None
    raise missing


def _labelled(drawing: Drawing, complete: Completeness) -> Drawing:
    """With title and caption. Says which runs did not come to a good end; a figure that counts such runs shows it."""
    partial = f"partial ({complete.counts}): " if complete.is_partial else ""
    headline(drawing.figure, plain(f"{partial}{drawing.title}", TEXT_MOST))
    footnote(drawing.figure, plain(drawing.caption, TEXT_MOST))
    return replace(drawing, sentences=[*drawing.sentences, *complete.sentences])


__all__ = ["FIGURES", "Drawing", "Request", "TooFew", "draw"]
