"""Which runs of a sweep are analysed."""

from dataclasses import replace
from pathlib import Path

import pytest

from domainwise.analysis import run_choice
from domainwise.analysis.run_choice import RunFilter, best_run_folders
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.sweeps.plan_run import plan_run


def test_a_damaged_run_is_said_to_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for algorithm in ("ERM", "DAT"):
        run = plan_run("BackgroundDigits", algorithm, ["scene1"], steps=2, evaluate_every=1)
        folder = RunFolder(tmp_path, run)
        folder.create()
        parts = [(domain, "out") for domain in run.train_domains] + [("scene1", "in"), ("scene1", "out")]
        folder.append(Record(run.id, 1, domain, split, 0.5, 1.0, 1.0) for domain, split in parts)
        folder.append([Status(run.id, 1, "done", "")])
        folder.model_file.touch()
    assert len(best_run_folders(tmp_path, RunFilter())) == 2
    said: list[tuple[object, ...]] = []
    monkeypatch.setattr(run_choice.log, "warning", lambda *words: said.append(words))
    (folder.path / "run.json").write_text("{")
    (left,) = best_run_folders(tmp_path, RunFilter())
    assert left != folder.path
    assert any(folder.path.name in str(words) for words in said)


def test_a_run_with_an_average_is_chosen_by_its_averaged_weights(tmp_path: Path) -> None:
    """Draw 0 has the better last weights, draw 1 the better averaged ones, which models have."""
    folders = []
    for draw, (last, averaged) in enumerate(((0.8, 0.6), (0.5, 0.7))):
        run = plan_run("BackgroundDigits", "ERM", ["scene1"], steps=2, evaluate_every=1, draw=draw, average="sma")
        folder = RunFolder(tmp_path, run)
        folder.create()
        parts = [(domain, "out") for domain in run.train_domains] + [("scene1", "in"), ("scene1", "out")]
        rows = [Record(run.id, 1, domain, split, last, 1.0, 1.0) for domain, split in parts]
        folder.append([*rows, *(replace(row, accuracy=averaged, average="sma") for row in rows)])
        folder.append([Status(run.id, 1, "done", "")])
        folder.model_file.touch()
        folders.append(folder.path)
    assert best_run_folders(tmp_path, RunFilter()) == folders[1:]
