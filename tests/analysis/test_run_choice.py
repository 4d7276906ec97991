"""Which runs of a sweep are analysed."""

from pathlib import Path

import pytest

from domainwise.analysis import run_choice
from domainwise.analysis.run_choice import RunFilter, best_run_folders
from domainwise.protocol.records import Record, RunFolder, Status
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
