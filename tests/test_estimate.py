"""How long a sweep is said to take."""

from pathlib import Path
from typing import Any

import pytest
import torch

from domainwise.engine.session import Session
from domainwise.runs import Run
from domainwise.sweep import estimate
from folders import make_folder


@pytest.mark.parametrize(("size", "given"), [(16, 4), (96, 2)])
@pytest.mark.parametrize(("seconds", "made"), [(0.5, [1, 3]), (6.0, [1])])
def test_a_cpu_is_shown_few_large_images_and_few_long_steps(
    size: int, given: int, seconds: float, made: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    steps: list[int] = []

    class Watched(Session):
        def __init__(self, run: Run, *others: Any) -> None:
            shown.append(run.hparams["batch_size"])
            super().__init__(run, *others)

    def timed(_: Session, count: int, __: torch.device) -> float:
        steps.append(count)
        return seconds

    monkeypatch.setattr(estimate, "Session", Watched)
    monkeypatch.setattr(estimate, "_timed", timed)
    monkeypatch.setattr(estimate, "_now", lambda _: 0.0)
    photos = str(make_folder(tmp_path / "photos"))
    hparams = {"batch_size": 4}
    run = Run.plan(photos, "ERM", "lab", network="small-cnn", hparams=hparams, steps=10, image_size=size)
    assert estimate.estimate_seconds([run, run], "cpu", None) == pytest.approx(2 * 10 * 4 * seconds / given)
    assert shown == [given], "once for all runs of an algorithm"
    assert steps == made


def test_an_estimate_is_in_proportion_to_steps_and_batches() -> None:
    def seconds(steps: int, batch: int) -> float:
        run = Run.plan("BackgroundDigits", "ERM", "scene1", hparams={"batch_size": batch}, steps=steps)
        return estimate.estimate_seconds([run], "cpu", None)

    assert seconds(10, 4) > 0
    assert seconds(100_000, 32) > 20 * seconds(1000, 8)
