"""Runs on clusters: a real Ray cluster of two nodes that loses one, and submitit's local executor in place of Slurm."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from domainwise.errors import UserError
from domainwise.records import RunFolder
from domainwise.runs import Run
from domainwise.sweep import ray as on_ray
from domainwise.sweep import slurm
from domainwise.sweep.events import Settings
from domainwise.sweep.plan import Plan

RUNS = Plan(
    "BackgroundDigits", ("ERM", "DAT"), draws=1, trials=1, steps=21, evaluate_every=10, hparams={"batch_size": 4}
).runs()


def results(out: Path, runs: list[Run]) -> list[tuple[list[tuple[object, ...]], str]]:
    found = []
    for run in runs:
        records, status = RunFolder(out, run).read()
        assert status is not None
        found.append(([(r.step, r.domain, r.split, r.accuracy, r.loss) for r in records], status.status))
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[tuple[object, ...]], str]]:
    from domainwise.engine.train import train

    out = tmp_path_factory.mktemp("undisturbed")
    for run in RUNS:
        train(run, out, device="cpu")
    return results(out, RUNS)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Two nodes with one CPU each, in processes of their own."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'domainwise[ray]'")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.second = nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def test_a_node_that_vanishes_takes_no_run_with_it(cluster: object, undisturbed: object, tmp_path: Path) -> None:
    ends: dict[str, str] = {}
    removed = threading.Event()
    for event in on_ray.execute(RUNS, Settings(tmp_path, "cpu"), address=cluster.address):
        if event.ended:
            assert event.run.id not in ends, "a run ends once"
            ends[event.run.id] = event.ended.status
        if not removed.is_set():
            removed.set()
            cluster.remove_node(cluster.second, allow_graceful=False)
    assert removed.is_set() and len(ends) == len(RUNS)
    assert results(tmp_path, RUNS) == undisturbed
    before = time.monotonic()
    again = list(on_ray.execute(RUNS, Settings(tmp_path, "cpu"), address=cluster.address))
    assert all(event.earlier for event in again) and time.monotonic() - before < 10


def test_a_ray_of_our_own_listens_on_the_loopback_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'domainwise[ray]'")
    asked = {}
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: asked.update(options))
    on_ray.RayCluster(None)
    assert asked["_node_ip_address"] == "127.0.0.1" and asked["include_dashboard"] is False


@pytest.mark.parametrize(("module", "package", "place"), [(on_ray, "ray", "ray"), (slurm, "submitit", "slurm")])
def test_without_the_package_one_line_says_what_to_install(
    module: object, package: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"--on {place}.*pip install 'domainwise\[{place}\]'"):
        list(module.execute(RUNS, Settings(tmp_path)))


def test_no_cluster_at_an_address_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'domainwise[slurm]'")
    with pytest.raises(UserError, match="no Slurm here"):
        list(slurm.execute(RUNS, Settings(tmp_path)))
    with pytest.raises(UserError, match="--slurm"):
        list(slurm.execute(RUNS, Settings(tmp_path), {"no_such_parameter": 1}, kind="local"))


def test_jobs_through_submitit_and_a_lost_job_is_submitted_again(undisturbed: object, tmp_path: Path) -> None:
    """submitit's local executor runs each job in a process of its own, as Slurm would on a node."""
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'domainwise[slurm]'")
    runs = RUNS[:2]
    cluster = slurm.SlurmCluster(Settings(tmp_path, "cpu"), {"timeout_min": 5}, kind="local")
    lost, submit = [], cluster.submit

    def lose_the_first(run: Run, settings: Settings) -> None:
        submit(run, settings)
        if not lost:
            lost.append(run)
            next(iter(cluster.jobs.values()))[0].cancel(check=False)

    cluster.submit = lose_the_first  # type: ignore[method-assign]
    from domainwise.sweep.cluster import execute_on

    ends = {
        event.run.id: event.ended.status
        for event in execute_on(cluster, runs, Settings(tmp_path, "cpu"))
        if event.ended
    }
    assert lost and ends == {run.id: "done" for run in runs}
    assert results(tmp_path, runs) == undisturbed[:2]
