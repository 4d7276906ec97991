"""Published runs repeat bit by bit, where the CPU and torch are those that made them: the shortest of every method."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch

from domainwise.algorithms import ALGORITHMS
from domainwise.core.provenance import device_name
from domainwise.data.catalogue import DATASETS
from domainwise.engine.train import train
from domainwise.sweeps.published import FILE, PublishedRun, read_published

RESULTS = Path(__file__).parents[2] / "results"
HERE = device_name(torch.device("cpu")), f"torch {torch.__version__}"


@cache
def shortest_runs() -> dict[str, PublishedRun]:
    """By method, of those that were made on such a CPU with this torch."""
    found: dict[str, PublishedRun] = {}
    for file in sorted(RESULTS.glob(f"*/{FILE}")):
        for one in read_published(file.parent):
            made_here = one.status.device == HERE[0] and HERE[1] in one.status.software.split(", ")
            can_be_repeated = one.status.status == "done" and one.run.dataset in DATASETS
            known = found.get(one.run.algorithm)
            if made_here and can_be_repeated and (known is None or one.seconds[-1] < known.seconds[-1]):
                found[one.run.algorithm] = one
    return found


WITHOUT_COMMIT = {"pacs-probes", "pacs-averages"}
"""Made by an installed package, or by a source with uncommitted changes: named in docs/reliability.md."""
THREADS_SINCE = "2026-11-18"


@pytest.mark.parametrize("folder", sorted(file.parent.name for file in RESULTS.glob(f"*/{FILE}")))
def test_published_runs_say_where_they_come_from(folder: str) -> None:
    statuses = [one.status for one in read_published(RESULTS / folder)]
    assert all(one.has_provenance and one.date for one in statuses)
    assert all(one.threads for one in statuses if one.date >= THREADS_SINCE)
    if folder not in WITHOUT_COMMIT:
        assert all(re.match(r"domainwise [0-9a-f]{10},", one.software) for one in statuses)


def scores(one: PublishedRun) -> list[tuple[int, str, str, float, float]]:
    """What records of every version have."""
    return [(row.step, row.domain, row.split, row.accuracy, row.loss) for row in one.records() if row.average is None]


@pytest.mark.slow
@pytest.mark.parametrize("method", ALGORITHMS)
def test_a_published_run_repeats(method: str, tmp_path: Path) -> None:
    published = shortest_runs().get(method)
    if published is None:
        pytest.skip(f"no short run of {method} was published from this type of CPU with this torch")
    result = train(published.run, tmp_path, device="cpu")
    assert scores(PublishedRun.of(published.run, result.status, result.records)) == scores(published)
