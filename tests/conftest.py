"""Fixtures for all tests: one thread for each of two test processes, a Ctrl-C that is heard, their own decode cache."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from browser import Browser
from commands import Command, commands
from domainwise.algorithms import ALGORITHMS
from domainwise.core import plugins
from domainwise.data.catalogue import DATASETS
from domainwise.data.sources import downloads
from domainwise.nets import NETWORKS
from download_server import Server, running
from hub_models import save_model
from processes import forked_workers
from small_datasets import make_folder

torch.set_num_threads(1)

for number, heard in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # as in a shell's background jobs, and under nohup
        signal.signal(number, heard)


@pytest.fixture(autouse=True, scope="session")
def decode_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded images of tests go to a temporary folder, unless the environment says where; the hub's cache is empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
        if "DOMAINWISE_CACHE" not in os.environ:
            patch.setenv("DOMAINWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    one = Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny random model of a family of transformers, saved once."""
    root = tmp_path_factory.mktemp("backbones")
    return lambda family: root / family if (root / family).is_dir() else save_model(family, root / family)


@pytest.fixture
def domainwise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return commands(capsys)


@pytest.fixture
def quick_workers() -> Iterator[None]:
    with forked_workers():
        yield


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server to download from, without pauses between attempts."""
    monkeypatch.setattr(downloads, "PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running(Server()) as server:
        yield server


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of images: three domains, two classes."""
    return make_folder(tmp_path / "photos")


@pytest.fixture
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithms, networks and datasets that a test registers are unknown after it."""
    for registry in (ALGORITHMS, NETWORKS, DATASETS):
        assert all(registry.values()), "what is built in is imported now: later imports would be taken back"
        for mapping in ("_things", "_options"):
            monkeypatch.setattr(registry, mapping, dict(getattr(registry, mapping)))
    monkeypatch.setattr(plugins, "_loaded", set(plugins._loaded))
    monkeypatch.setenv(plugins.VARIABLE, "")
