"""The thread that owns the model: batches of concurrent requests, a bounded queue, and failures that stay small."""

import threading
import time
from concurrent.futures import wait
from typing import Any

import pytest
import torch
from torch import Tensor

from domainwise.serving.limits import Limits, Refused
from domainwise.serving.worker import ImagesJob, Worker


class Gate:
    """A model that waits until it is let through, and notes its batches."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        self.batches: list[int] = []
        self.threads: set[str] = set()

    def compute(self, images: Tensor, _domain: str) -> list[Any]:
        self.entered.set()
        self.open.wait(10)
        self.batches.append(len(images))
        self.threads.add(threading.current_thread().name)
        if bool((images < 0).any()):
            raise ValueError("a bad\nimage")
        return [float(one.sum()) for one in images]


def images(*values: float) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1, 1)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def started(**limits: Any) -> Worker:
    worker = Worker(Limits(max_images=4, **limits), 1, 0.0, lambda *_: None)
    worker.start()
    return worker


def test_concurrent_jobs_are_computed_together_and_answered_apart(gate: Gate) -> None:
    worker = started(batch_size=8, queue=100)
    first = worker.submit(ImagesJob(gate.compute, images(0)))
    assert gate.entered.wait(10)
    answers = [worker.submit(ImagesJob(gate.compute, images(n, n + 0.5))) for n in range(1, 7)]
    gate.open.set()
    assert first.result(10) == [0]
    assert [answer.result(10) for answer in answers] == [[n, n + 0.5] for n in range(1, 7)]
    assert gate.batches == [1, 8, 4] and gate.threads == {"model"}
    worker.close()


def test_jobs_that_must_be_alone_are(gate: Gate) -> None:
    worker = started()
    gate.open.set()
    answers = [worker.submit(ImagesJob(gate.compute, images(n), alone=True)) for n in range(3)]
    wait(answers, 10)
    assert gate.batches == [1, 1, 1]
    worker.close()


def test_another_function_begins_another_batch(gate: Gate) -> None:
    other = Gate()
    worker = started()
    worker.submit(ImagesJob(gate.compute, images(0)))
    assert gate.entered.wait(10)
    answers = [worker.submit(ImagesJob(one.compute, images(1))) for one in (gate, gate, other, gate)]
    for one in (gate, other):
        one.open.set()
    wait(answers, 10)
    assert (gate.batches, other.batches) == ([1, 2, 1], [1])
    worker.close()


def test_a_request_beyond_the_queue_is_refused(gate: Gate) -> None:
    worker = started(queue=5)
    with worker.room(3), worker.room(2):
        with pytest.raises(Refused, match="takes 5 at most") as refusal, worker.room(1):
            pass
        assert refusal.value.status == 503 and refusal.value.headers == {"Retry-After": "1"}
    with worker.room(4):
        pass
    assert worker.taken == 0
    worker.close()


def test_a_request_that_would_wait_too_long_is_refused() -> None:
    worker = started(wait_seconds=1.0)
    worker.pace = 0.4
    with worker.room(2), worker.room(1), pytest.raises(Refused, match="longer than 1 s"), worker.room(1):
        pass
    worker.close()


def test_the_pace_follows_the_latest_batches(gate: Gate) -> None:
    worker = started()
    worker.pace = 100.0
    gate.open.set()
    for _ in range(20):
        worker.submit(ImagesJob(gate.compute, images(1), alone=True)).result(10)
    worker.close()
    assert worker.pace < 1


def test_a_failure_is_answered_and_the_next_job_computed(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    worker = started()
    gate.open.set()
    bad = worker.submit(ImagesJob(gate.compute, images(-1), alone=True))
    assert isinstance(bad.exception(10), ValueError)
    assert worker.submit(ImagesJob(gate.compute, images(2))).result(10) == [2]
    worker.close()


def test_a_client_that_has_gone_away_costs_nothing(gate: Gate) -> None:
    worker = started()
    worker.submit(ImagesJob(gate.compute, images(0)))
    assert gate.entered.wait(10)
    gone = worker.submit(ImagesJob(gate.compute, images(1)))
    stays = worker.submit(ImagesJob(gate.compute, images(2)))
    assert gone.cancel()
    gate.open.set()
    assert stays.result(10) == [2] and gate.batches == [1, 1]
    worker.close()


def test_closing_finishes_what_was_taken_and_takes_no_more(gate: Gate) -> None:
    worker = started()
    answers = [worker.submit(ImagesJob(gate.compute, images(n), alone=True)) for n in range(3)]
    assert worker.healthy
    closing = threading.Thread(target=worker.close)
    closing.start()
    time.sleep(0.05)
    with pytest.raises(Refused, match="stopping"):
        worker.submit(ImagesJob(gate.compute, images(9)))
    assert not worker.healthy
    gate.open.set()
    assert [answer.result(10) for answer in answers] == [[0], [1], [2]]
    closing.join(10)


def test_a_model_that_is_stuck_is_unhealthy(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = started()
    worker.submit(ImagesJob(gate.compute, images(0)))
    assert gate.entered.wait(10)
    worker.submit(ImagesJob(gate.compute, images(1), since=time.monotonic() - 1000))
    assert not worker.healthy
    gate.open.set()
    worker.close()
