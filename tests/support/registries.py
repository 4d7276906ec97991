"""Tests that register algorithms, networks or datasets, and leave none behind."""

import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.core import plugins
from domainwise.data.catalogue import DATASETS
from domainwise.nets import NETWORKS


@pytest.fixture
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (ALGORITHMS, NETWORKS, DATASETS):
        assert all(registry.values()), "what is built in is imported now: later imports would be taken back"
        for kept in ("_things", "_options"):
            monkeypatch.setattr(registry, kept, dict(getattr(registry, kept)))
    monkeypatch.setattr(plugins, "_loaded", set(plugins._loaded))
    monkeypatch.setenv(plugins.VARIABLE, "")
