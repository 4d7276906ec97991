"""How long a sweep is said to take."""

from pathlib import Path
from typing import Any

import pytest
import torch

from domainwise.protocol.runs import Run
from domainwise.sweeps import estimate
from domainwise.sweeps.plan_run import plan_run
from small_datasets import make_folder

PARTS = {("lab", "in"): torch.arange(250), ("clinic", "out"): torch.arange(50)}
"""What an evaluation judges."""


class Clock:
    """Steps and evaluations that take the time they are told to take."""

    def __init__(self, per_image: float, first: float) -> None:
        self.now, self.per_image, self.first = 0.0, per_image, first
        self.steps: list[int] = []
        self.judged: list[int] = []

    def session(self, run: Run, *_: object) -> Any:
        clock = self

        class Session:
            environments, algorithm, waited = None, None, False
            batch = int(run.hparams["batch_size"] or 0)

            def step(self) -> None:
                clock.now += clock.per_image * self.batch + (0 if self.waited else clock.first)
                self.waited = True
                clock.steps.append(self.batch)

        assert run.weights == "", "no file is needed"
        return Session()

    def evaluate(self, _: object, __: object, sample: dict[tuple[str, str], torch.Tensor], ___: object) -> None:
        self.judged.append(sum(map(len, sample.values())))
        self.now += 0.5 * self.judged[-1]


@pytest.mark.parametrize(
    ("place", "size", "per_image", "first", "steps", "judged"),
    [
        ("cpu", 16, 0.01, 0.0, [4, 4, 4, 4], 150),
        ("cpu", 16, 1.0, 0.0, [4], 150),
        ("cpu", 96, 0.01, 0.0, [2, 2, 2, 2, 4, 4, 4, 4], 150),
        ("cpu", 96, 0.3, 0.0, [2, 2, 2, 2, 4], 150),
        ("cpu", 96, 1.0, 0.0, [2], 4),
        ("meta", 96, 0.01, 5.0, [4, 4, 4, 4], 150),
        ("meta", 96, 1.0, 5.0, [4, 4, 4, 4], 150),
    ],
)
def test_steps_and_evaluations_are_timed_once_and_in_proportion(
    place: str,
    size: int,
    per_image: float,
    first: float,
    steps: list[int],
    judged: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A CPU is shown few large images first, and a long step is not made again; another's first step prepares it."""
    clock = Clock(per_image, first)
    monkeypatch.setattr(estimate, "pick_device", lambda _: torch.device(place))
    monkeypatch.setattr(estimate, "Session", clock.session)
    monkeypatch.setattr(estimate, "evaluate", clock.evaluate)
    monkeypatch.setattr(estimate, "splits_to_evaluate", lambda *_: PARTS)
    monkeypatch.setattr(estimate, "now", lambda _: clock.now)
    more: dict[str, Any] = {"network": "small-cnn", "steps": 10, "image_size": size}
    photos = str(make_folder(tmp_path / "photos"))
    runs = [plan_run(photos, "ERM", "lab", hparams={"batch_size": batch}, **more) for batch in (8, 4, 4)]
    evaluations = 3 * (len(range(0, 10, runs[0].evaluate_every)) + 1)
    expected = 10 * 16 * per_image + evaluations * 0.5 * 300
    assert estimate.estimate_seconds(runs, "any", None) == pytest.approx(expected)
    assert clock.steps == steps and clock.judged == [judged]


def test_methods_that_begin_as_erm_are_timed_as_they_are_later(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Run] = []

    def session(run: Run, *_: object) -> None:
        timed.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(estimate, "Session", session)
    for name in ("RDM", "ERMPlusPlus"):
        run = plan_run("BackgroundDigits", name, "scene1")
        with pytest.raises(KeyboardInterrupt):
            estimate.estimate_seconds([run], "cpu", None)
    late, head = timed
    assert (late.hparams["anneal"], head.hparams["head_steps"]) == (0, 0)
    assert "anneal" not in head.hparams and "head_steps" not in late.hparams


def test_one_image_per_domain_is_fewer_than_few(tmp_path: Path) -> None:
    run = plan_run(
        str(make_folder(tmp_path / "photos")),
        "ERM",
        "lab",
        network="small-cnn",
        hparams={"batch_size": 1},
        steps=2,
        image_size=96,
    )
    assert estimate.estimate_seconds([run], "cpu", None) > 0
