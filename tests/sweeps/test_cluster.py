"""Runs on clusters: what a driver does with tasks that are lost, and a real Ray cluster of two nodes that loses one."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from domainwise.core.errors import StorageError, UserError
from domainwise.core.locks import RunLock
from domainwise.engine.train import train
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps import cluster as cluster_module
from domainwise.sweeps import ray as on_ray
from domainwise.sweeps import slurm
from domainwise.sweeps.cluster import SubmissionRefused, TaskEnded, execute_on
from domainwise.sweeps.events import Settings
from domainwise.sweeps.plan import plan_sweep
from short_trainings import saved_results

RUNS = plan_sweep(
    "BackgroundDigits",
    ("ERM", "DAT"),
    draws=1,
    trials=1,
    test_domains=("scene1", "scene2"),
    steps=21,
    evaluate_every=10,
    hparams={"batch_size": 4},
).runs()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    for run in RUNS:
        train(run, out, device="cpu")
    return out


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


@pytest.mark.slow
def test_a_node_that_vanishes_takes_no_run_with_it(cluster: object, undisturbed: Path, tmp_path: Path) -> None:
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
    for run in RUNS:
        assert saved_results(run, tmp_path) == saved_results(run, undisturbed)
    before = time.monotonic()
    again = list(on_ray.execute(RUNS, Settings(tmp_path, "cpu"), address=cluster.address))
    assert all(event.earlier for event in again) and time.monotonic() - before < 10


LOOPBACKS = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
OWN_RAY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from domainwise.sweeps.ray import RayCluster
from processes import listening
cluster = RayCluster(None)
cluster.ray.get(cluster.ray.remote(lambda: None).remote())
print(*listening(os.getpid()))
cluster.close()
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="who listens where is read from /proc")
def test_a_ray_of_our_own_listens_on_the_loopback_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'domainwise[ray]'")
    monkeypatch.setenv("HOME", str(tmp_path))
    command = [sys.executable, "-c", OWN_RAY, str(Path(__file__).parents[1] / "support")]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = set(answer.stdout.split())
    assert found and found <= LOOPBACKS, answer.stderr


def test_an_address_where_nobody_listens_is_said_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        before = time.monotonic()
        with pytest.raises(UserError, match=f"no Ray cluster at {address}"):
            on_ray.RayCluster(address)
        assert time.monotonic() - before < 5


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(b"", "something else"), (b"HTTP/1.1 400 Bad Request", "something else"), (None, "no answer")],
)
def test_an_address_where_no_ray_listens_is_said_in_bounded_time(
    answer: bytes | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                if answer is None:
                    time.sleep(0.5)
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UserError, match=f"no Ray cluster at .* .{reason}"):
            on_ray.RayCluster(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize(("module", "package", "place"), [(on_ray, "ray", "ray"), (slurm, "submitit", "slurm")])
def test_without_the_package_one_line_says_what_to_install(
    module: object, package: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"is not installed: pip install 'domainwise\[{place}\]'"):
        list(module.execute(RUNS, Settings(tmp_path)))


@pytest.mark.parametrize(("device", "gpus", "asked"), [("cpu", 2, 0), ("auto", 2, 1), ("auto", 0, 0), ("cuda", 2, 1)])
def test_a_task_on_ray_gets_a_gpu_where_there_are_some(
    device: str, gpus: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'domainwise[ray]'")
    options: dict[str, object] = {}
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0} | ({"GPU": float(gpus)} if gpus else {}))
    monkeypatch.setattr(ray, "remote", lambda **given: options.update(given) or (lambda task: task))
    on_ray.RayCluster(None, device)
    assert options["num_gpus"] == asked
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    with pytest.raises(UserError, match="no node of this Ray cluster offers a GPU"):
        on_ray.RayCluster(None, "cuda")


# what the driver does, on a cluster that does what it is told


@dataclass
class Obedient:
    """Takes one task at a time; what becomes of each is told beforehand."""

    fates: list[Callable[[Run], TaskEnded]]
    capacity: int = 1
    poll_seconds: float = 0.0
    submissions: list[Run] = field(default_factory=list)
    running: list[Run] = field(default_factory=list)
    adopted: tuple[Run, ...] = ()
    closed: bool = False

    def ready(self) -> bool:
        return True

    def adopt(self, run: Run) -> bool:
        if run in self.adopted:
            self.running.append(run)
        return run in self.adopted

    def submit(self, run: Run, settings: Settings) -> None:  # noqa: ARG002 (a cluster's)
        self.submissions.append(run)
        self.running.append(run)

    def finished(self) -> list[TaskEnded]:
        return [self.fates.pop(0)(self.running.pop(0))] if self.running else []

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fates(tmp_path: Path) -> dict[str, Callable[[Run], TaskEnded]]:
    def done(run: Run) -> TaskEnded:
        folder = RunFolder(tmp_path, run)
        folder.create()
        folder.append([Status(run.id, run.steps - 1, "done", "")])
        return TaskEnded(run)

    def saved(run: Run) -> None:
        folder = RunFolder(tmp_path, run)
        folder.create()
        before = folder.checkpoint_file.stat().st_mtime_ns if folder.checkpoint_file.exists() else 0
        folder.checkpoint_file.touch()
        os.utime(folder.checkpoint_file, ns=(before + 10**9, before + 10**9))

    return {
        "done": done,
        "lost": lambda run: TaskEnded(run, "its node died"),
        "time limit": lambda run: saved(run) or TaskEnded(run),
        "cancelled": lambda run: saved(run) or TaskEnded(run, "job 7 cancelled", cancelled=True),
    }


@pytest.mark.parametrize(
    ("story", "end", "reason"),
    [
        (["lost", "lost", "done"], "done", ""),
        (["lost", "lost", "lost"], "failed", "lost 3 times, at last: its node died"),
        (["time limit"] * 7 + ["done"], "done", ""),
        (["time limit", "lost", "time limit", "lost", "lost"], "failed", "its node died"),
        (["cancelled"] * 3, "failed", "lost 3 times, at last: job 7 cancelled"),
    ],
)
def test_a_lost_task_is_repeated_within_bounds_and_for_ever_while_it_gets_on(
    story: list[str], end: str, reason: str, fates: dict[str, Callable[[Run], TaskEnded]], tmp_path: Path
) -> None:
    obedient = Obedient([fates[word] for word in story])
    (last,) = execute_on(obedient, RUNS[:1], Settings(tmp_path, "cpu"))
    assert last.ended.status == end and reason in last.ended.reason
    assert len(obedient.submissions) == len(story) and obedient.closed


def test_the_death_of_a_node_is_counted_once_and_another_is_waited_for(
    fates: dict[str, Callable[[Run], TaskEnded]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def node_died(run: Run) -> TaskEnded:
        return TaskEnded(run, "NodeDiedError", node_died=True)

    obedient = Obedient([*[node_died] * 5, fates["done"]])
    (event,) = execute_on(obedient, RUNS[:1], Settings(tmp_path, "cpu"))
    assert event.ended is not None and event.ended.status == "done" and len(obedient.submissions) == 6
    monkeypatch.setattr(cluster_module, "NOTICED_SECONDS", -1.0)
    again = Obedient([*[node_died] * 5, fates["done"]])
    (event,) = execute_on(again, RUNS[1:2], Settings(tmp_path, "cpu"))
    assert event.ended is not None and event.ended.status == "failed" and len(again.submissions) == 3, "three deaths"


def test_a_cluster_without_nodes_is_waited_for_and_not_for_ever(
    fates: dict[str, Callable[[Run], TaskEnded]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    obedient, looks = Obedient([fates["done"]]), iter([False, False, True, True])
    monkeypatch.setattr(obedient, "ready", lambda: next(looks), raising=False)
    (event,) = execute_on(obedient, RUNS[:1], Settings(tmp_path, "cpu"))
    assert event.ended is not None and event.ended.status == "done"
    assert caplog.text.count("no node of the cluster is alive: waiting up to 5 min 00 s for one") == 1
    monkeypatch.setattr(cluster_module, "NODE_SECONDS", 0.0)
    monkeypatch.setattr(obedient, "ready", lambda: False)
    with pytest.raises(UserError, match=r"no node of the cluster was alive .* the same command continues"):
        list(execute_on(obedient, RUNS[1:2], Settings(tmp_path, "cpu")))


def test_a_full_disk_stops_a_cluster_and_fails_no_run(
    fates: dict[str, Callable[[Run], TaskEnded]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise StorageError.of(OSError(28, "No space left on device"), folder)

    monkeypatch.setattr(cluster_module.files, "check_space", full)
    with pytest.raises(StorageError, match=f"No space left on device: cannot write to {tmp_path}"):
        list(execute_on(Obedient([fates["lost"]]), RUNS[:1], Settings(tmp_path, "cpu")))
    assert RunFolder(tmp_path, RUNS[0]).status() is None


def test_a_full_cluster_is_waited_for_but_one_that_takes_nothing_is_an_error(
    fates: dict[str, Callable[[Run], TaskEnded]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    obedient = Obedient([fates["done"]] * 3, capacity=3)
    take = obedient.submit

    def full_with_one(run: Run, settings: Settings) -> None:
        if obedient.running:
            raise SubmissionRefused("no more than one")
        take(run, settings)

    monkeypatch.setattr(obedient, "submit", full_with_one)
    ends = [event.run for event in execute_on(obedient, RUNS[:3], Settings(tmp_path, "cpu")) if event.ended]
    assert ends == RUNS[:3] == obedient.submissions

    def closed(run: Run, settings: Settings) -> None:
        raise SubmissionRefused("no such partition")

    monkeypatch.setattr(obedient, "submit", closed)
    with pytest.raises(UserError, match="no such partition"):
        list(execute_on(obedient, RUNS[3:], Settings(tmp_path, "cpu")))


def test_what_others_do_is_waited_for_and_what_is_queued_is_not_submitted_again(
    fates: dict[str, Callable[[Run], TaskEnded]], tmp_path: Path
) -> None:
    held, queued = RUNS[:2]
    obedient = Obedient([fates["lost"], fates["done"], fates["done"]], adopted=(queued,))
    folder = RunFolder(tmp_path, held)
    folder.create()
    with RunLock(folder.path):
        events = execute_on(obedient, [held, queued], Settings(tmp_path, "cpu"))
        assert next(events).run == queued and obedient.submissions == [], "adopted twice: it was lost once"
    assert [event.run for event in events] == [held] and obedient.submissions == [held]


def test_an_interrupted_task_is_not_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped_while_loading(*arguments: object, progress: Callable[[int], None], **options: object) -> object:
        signal.raise_signal(signal.SIGTERM)
        return train(*arguments, progress=progress, **options)

    monkeypatch.setattr(cluster_module, "train", stopped_while_loading)
    cluster_module.train_task(RUNS[0], Settings(tmp_path, "cpu"))
    folder = RunFolder(tmp_path, RUNS[0])
    assert folder.status() is None and folder.load_checkpoint()["next_step"] == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_device_is_looked_for_where_runs_are_trained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no CUDA device"):
        Settings(tmp_path, "cuda").check(RUNS)
    Settings(tmp_path, "cuda").check(RUNS, here=False)
    with pytest.raises(UserError, match="unknown device"):
        Settings(tmp_path, "gpu").check(RUNS, here=False)
    cluster_module.train_task(RUNS[0], Settings(tmp_path, "cuda"))
    assert "no CUDA device" in RunFolder(tmp_path, RUNS[0]).status().reason
