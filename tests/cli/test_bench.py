"""The benchmark: what it measures and what it leaves."""

import json
from pathlib import Path

import pytest
import torch

from domainwise.cli import main
from domainwise.cli.bench.machine import describe, seconds_each
from domainwise.cli.bench.plain_loop import PlainLoop
from domainwise.data.catalogue import DATASETS

CPU = torch.device("cpu")
QUICK = ["--device", "cpu", "--dataset", "BackgroundDigits", "--batch-size", "4", "--seconds", "0.01"]


def test_a_plain_loop_learns() -> None:
    data = DATASETS["BackgroundDigits"].load()
    torch.manual_seed(0)
    loop = PlainLoop(data, ("scene1", "scene2"), "small-cnn", 16, CPU)
    x, y = data.normalise(data.images[:200]), data.labels[:200]
    losses = []
    for _ in range(2):
        with torch.no_grad():
            losses.append(float(torch.nn.functional.cross_entropy(loop.network(x), y)))
        for _ in range(60):
            loop.step()
    assert losses[1] < 0.8 * losses[0]
    loop.evaluate([data.rows("scene1")[:70]])
    assert loop.network.training


def test_medians_are_of_the_work_alone() -> None:
    calls: list[int] = []
    assert seconds_each(lambda: calls.append(1), CPU, budget=0.001) < 0.001
    assert len(calls) > 10
    calls.clear()
    seconds_each(lambda: calls.append(1), CPU, budget=0.0)
    assert len(calls) == 2, "one to warm up, one that counts"


def test_the_machine_is_described() -> None:
    about = describe(CPU)
    assert about["torch"] == torch.__version__ and about["device"] and len(about["date"]) == 10


def test_the_command_prints_json_and_leaves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "bench.json"
    with pytest.raises(SystemExit) as end:
        main(["bench", *QUICK, "--algorithms", "ERM,DAT", "--precisions", "fp32", "--json", "--out", str(file)])
    assert end.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(file.read_text())
    rows = {(row["what"], row["form"]): row for row in printed["rows"]}
    names = ("plain loop", "ERM", "DAT", "plain evaluation", "evaluation", "all splits")
    assert list(rows) == [(name, "eager") for name in names]
    plain, erm = rows["plain loop", "eager"], rows["ERM", "eager"]
    assert erm["milliseconds"] > 0 and erm["of_matrix_rate"] > 0
    assert erm["images_per_second"] == pytest.approx(12 / erm["milliseconds"] * 1000, rel=0.01)
    assert erm["times_plain"] == pytest.approx(plain["milliseconds"] / erm["milliseconds"], rel=0.1)
    some, every = ({k: rows[what, "eager"][k] for k in ("milliseconds", "images_per_second")} for what in names[-2:])
    evaluated = [row["milliseconds"] * row["images_per_second"] / 1000 for row in (some, every)]
    assert evaluated == pytest.approx([40, 100], abs=2), (
        "a fiftieth of 5,000 images: `out` of three domains and one whole"
    )
    assert (printed["dataset"], printed["network"], printed["batch_size"]) == ("BackgroundDigits", "small-cnn", 4)


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", *QUICK, "--precisions", "fp8"])
    assert end.value.code == 2 and "unknown precision 'fp8'" in capsys.readouterr().err
