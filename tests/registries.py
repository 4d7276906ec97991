"""Tests that register algorithms, networks or datasets, and leave none behind."""

import pytest

from domainwise import plugins
from domainwise.algorithms import ALGORITHMS
from domainwise.data import DATASETS
from domainwise.nets import NETWORKS


@pytest.fixture
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (ALGORITHMS, NETWORKS, DATASETS):
        monkeypatch.setattr(registry, "_things", dict(registry._things))
    monkeypatch.setattr(plugins, "_loaded", set(plugins._loaded))
    monkeypatch.setenv(plugins.VARIABLE, "")
