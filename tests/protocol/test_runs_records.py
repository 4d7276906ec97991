"""Runs and their identities; records and how they survive a crash."""

import json
import os
import pickle
import re
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from domainwise.core.errors import UserError
from domainwise.core.locks import RunLock
from domainwise.data.catalogue import Dataset
from domainwise.data.environments import Environments
from domainwise.protocol.records import PenaltyRecord, Record, Status, row_values
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import FORMAT, Run, added, identity
from domainwise.sweeps.plan_run import plan_run

PLAN = "plan_run('BackgroundDigits', 'DAT', ['scene3', 1], hparams={'eps': 2, 'norm': 'linf'}, trial=2, seed=7)"


@pytest.fixture
def run() -> Run:
    return eval(PLAN)


@pytest.fixture
def folder(tmp_path: Path, run: Run) -> RunFolder:
    result = RunFolder(tmp_path, run)
    result.create()
    return result


# identity


def test_plan_fills_in_what_dataset_and_algorithm_say(run: Run) -> None:
    assert run.test_domains == ("scene3", "scene2") and run.train_domains == ("scene1", "scene4")
    assert (run.network, run.steps, run.evaluate_every) == ("small-cnn", 601, 100)
    assert run.hparams["eps"] == 2.0 and run.hparams["norm"] == "linf" and run.hparams["alpha"] == 0.1


def test_identity_is_the_same_in_another_process(run: Run) -> None:
    script = f"from domainwise.sweeps.plan_run import plan_run; print({PLAN}.id)"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    assert subprocess.check_output([sys.executable, "-c", script], env=environment, text=True).strip() == run.id


def another(value: Any) -> Any:
    match value:
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case tuple():
            return (*value, "other")
        case dict():
            return value | {"eps": 3.0}
    raise AssertionError(f"what else than {value!r}?")


@pytest.mark.parametrize("field", [field.name for field in fields(Run)])
def test_identity_changes_with_every_field(run: Run, field: str) -> None:
    other = replace(run, **{field: another(getattr(run, field))})
    assert other.id != run.id and other != run


@pytest.mark.parametrize("field", ["train_domains", "test_domains"])
def test_identity_knows_the_order_of_domains(run: Run, field: str) -> None:
    assert replace(run, **{field: getattr(run, field)[::-1]}).id != run.id


def test_identity_does_not_know_how_a_value_was_written(run: Run) -> None:
    same = plan_run(
        "BackgroundDigits", "DAT", [2, "1"], hparams={"norm": "linf", "eps": 2.0}, trial=2, seed=7, steps=601
    )
    assert same == run and same.id == run.id and hash(same) == hash(run) and len({same, run}) == 1


@pytest.mark.parametrize("name", ["eps", "loss_cap", "clip_high"])
def test_whole_numbers_and_floats_are_one_run(name: str) -> None:
    one, two = (plan_run("BackgroundDigits", "DAT", [0], hparams={name: value}) for value in (2, 2.0))
    assert one.id == two.id


def test_identity_is_a_folder_name(run: Run) -> None:
    assert re.fullmatch("[0-9a-f]{16}", run.id)


def test_runs_survive_pickling(run: Run) -> None:
    assert pickle.loads(pickle.dumps(run)) == run


def test_a_run_is_frozen(run: Run) -> None:
    with pytest.raises(AttributeError):
        run.steps = 3  # type: ignore[misc]


def test_round_trip_through_run_json(folder: RunFolder, run: Run) -> None:
    back = Run.from_description(json.loads((folder.path / "run.json").read_text()))
    assert back == run and back.id == run.id == identity(json.loads((folder.path / "run.json").read_text()))


@pytest.mark.parametrize("format_number", [0, FORMAT + 1, str(FORMAT), None])
def test_foreign_formats_are_refused(run: Run, format_number: object) -> None:
    with pytest.raises(UserError, match=f"format {format_number!r}.*format {FORMAT}"):
        Run.from_description(run.describe() | {"format": format_number})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("threads", threads) for threads in (0, -3, 100_000, True, 1.0)],
        *[(field, "zz") for field in ("precision", "average", "start", "freeze", "lr_schedule", "balance")],
        *[("precision", []), ("early_stop", -1), ("clip_gradient", -1.0), ("layer_decay", 2.0)],
    ],
)
def test_a_description_with_a_value_that_no_plan_has_is_refused(run: Run, field: str, value: object) -> None:
    with pytest.raises(UserError, match=f'run.json: "{field}" must be .*: restore it'):
        Run.from_description(run.describe() | {field: value}, "run.json", "restore it")


def test_a_description_without_format_is_refused(run: Run) -> None:
    description = run.describe()
    del description["format"]
    with pytest.raises(UserError, match="format None"):
        Run.from_description(description)


@dataclass(frozen=True)
class LargerRun(Run):
    """A Run of a later version, with one field more."""

    schedule: str = added("constant")

    __hash__ = Run.__hash__


def test_a_new_field_at_its_default_is_no_part_of_description_and_identity(run: Run) -> None:
    later = LargerRun.from_description(run.describe())
    assert isinstance(later, LargerRun) and later.schedule == "constant"
    assert later.id == run.id and later.describe() == run.describe()
    other = replace(later, schedule="cosine")
    assert other.id != run.id and other.describe() == run.describe() | {"schedule": "cosine"}
    assert LargerRun.from_description(json.loads(json.dumps(other.describe()))) == other


# plans that cannot be

GOOD: dict[str, Any] = {"dataset": "BackgroundDigits", "algorithm": "ERM", "test_domains": [0]}


def test_a_run_without_a_test_domain_trains_on_every_domain() -> None:
    run = plan_run("BackgroundDigits", "ERM", [])
    assert run.train_domains == ("scene1", "scene2", "scene3", "scene4")
    assert "unseen none" in str(run)


def test_where_the_weights_lie_is_no_part_of_the_identity() -> None:
    here, there, other = (
        plan_run("BackgroundDigits", "ERM", 0, weights=weights)
        for weights in ("a/w.pth#12ab", "w.pth#12ab", "w.pth#34")
    )
    assert here.id == there.id != other.id
    assert here.weights == "a/w.pth#12ab"


def test_data_in_memory_is_described_for_a_run() -> None:
    generator = np.random.default_rng(0)
    images = {name: (generator.integers(0, 256, (9, 3, 8, 8), dtype=np.uint8), np.arange(9) % 2) for name in "ab"}
    data = Dataset.from_environments(Environments.from_arrays(images, name="mine"), steps=7)
    run = plan_run(data, "ERM", ["b"])
    assert (run.dataset, run.train_domains, run.steps, run.image_size) == ("mine", ("a",), 7, 8)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"algorithm": "DAP"}, "unknown algorithm 'DAP'.*'DAT'"),
        ({"algorithm": "erm"}, "'ERM'"),
        ({"algorithm": "zzzzzz"}, "known: .*DAT.*ERM"),
        ({"dataset": "ColouredMNIST"}, "unknown dataset.*'ColoredMNIST'"),
        ({"test_domains": ["scene9"]}, "unknown domain of BackgroundDigits 'scene9'.*'scene"),
        ({"test_domains": [4]}, "unknown domain.*'4'"),
        ({"test_domains": [-1]}, "unknown domain.*'-1'"),
        ({"image_size": 64}, "BackgroundDigits has images of 28 pixels only"),
        ({"test_domains": [0, "scene1"]}, "twice"),
        ({"train_domains": [1, 1]}, "twice"),
        ({"train_domains": [0, 1]}, "'scene1' cannot be both"),
        ({"train_domains": []}, "ERM needs at least 1 training domain"),
        ({"test_domains": [0, 1, 2, 3]}, "ERM needs at least 1 training domain"),
        ({"train_domains": ["scene77"]}, "unknown domain"),
        ({"network": "small-cn"}, "unknown network 'small-cn'.*'small-cnn'"),
        ({"precision": "fp16"}, "unknown precision 'fp16'.*'(fp32|bf16)'"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"steps": -5}, "steps must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"hparams": {"lrr": 1}}, "hyper-parameter of ERM 'lrr'.*'lr'"),
        ({"hparams": {"lr": "fast"}}, "lr='fast'"),
        ({"algorithm": "DAT", "hparams": {"eps": -1}}, "eps=-1 must be at least 0"),
    ],
    ids=str,
)
def test_impossible_plans(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        plan_run(**(GOOD | wrong))
    assert "\n" not in str(caught.value)


def test_a_bare_name_is_one_domain_not_its_letters() -> None:
    """Digit by digit, "15" would be the domains number 1 and 5."""
    try:
        run = plan_run("RotatedMNIST-embedded", "ERM", "15")
    except UserError:
        return
    assert run.test_domains == ("15",)


def test_domains_by_name_come_before_domains_by_number() -> None:
    assert plan_run("RotatedMNIST-embedded", "ERM", ["0"]).test_domains == ("0",)
    assert plan_run("RotatedMNIST-embedded", "ERM", [1]).test_domains == ("15",)


@pytest.mark.parametrize(
    ("steps", "every", "expected"), [(1, 1, [0]), (5, 2, [0, 2, 4]), (6, 2, [0, 2, 4, 5]), (4, 100, [0, 3])]
)
def test_evaluations_start_at_the_first_step_and_include_the_last(steps: int, every: int, expected: list[int]) -> None:
    run = plan_run(**GOOD, steps=steps, evaluate_every=every)
    assert [step for step in range(steps) if run.evaluated_at(step)] == expected


# records


def rows(run: Run, steps: int = 3) -> list[Record]:
    return [
        Record(run.id, step, domain, split, 0.1 + step / 7, 2.3 / (step + 1), step / 3, 1 / (step + 3))
        for step in range(steps)
        for domain, split in [("scene1", "out"), ("scene3", "in"), ("größer", "out")]
    ]


def end(run: Run) -> Status:
    return Status(run.id, 2, "done", "")


def test_what_is_appended_is_read_back(folder: RunFolder, run: Run) -> None:
    assert folder.read() == ([], None)
    written = rows(run)
    folder.append(written[:4])
    folder.append(written[4:])
    assert folder.read() == (written, None)
    folder.append([end(run)])
    assert folder.read() == (written, end(run))


def test_a_record_is_one_flat_json_row(folder: RunFolder, run: Run) -> None:
    folder.append([*rows(run), end(run)])
    lines = folder.records_file.read_text().splitlines()
    values = [json.loads(line) for line in lines]
    assert re.fullmatch("[0-9a-f]{8}", values[-1].pop("crc"))
    assert values == [row_values(row) for row in [*rows(run), end(run)]]
    assert all(not isinstance(value, (dict, list)) for line in lines for value in json.loads(line).values())


def test_records_without_a_training_loss_are_those_of_earlier_versions(folder: RunFolder, run: Run) -> None:
    earlier = [replace(row, training_loss=None) for row in rows(run)]
    folder.append(earlier)
    assert "training_loss" not in folder.records_file.read_text()
    assert folder.read() == (earlier, None)


@pytest.mark.parametrize("last", ["record", "status"])
def test_a_last_line_cut_anywhere_is_dropped_and_the_rest_kept(folder: RunFolder, run: Run, last: str) -> None:
    kept, lost = rows(run)[:-1], rows(run)[-1] if last == "record" else end(run)
    folder.append(kept)
    before = folder.records_file.stat().st_size
    folder.append([lost])
    whole = folder.records_file.read_bytes()
    for size in range(before, len(whole)):
        folder.records_file.write_bytes(whole[:size])
        assert folder.read() == (kept, None), f"cut after {size - before} of {len(whole) - before} bytes"


def test_only_a_last_line_is_left_of_a_file_cut_in_its_first(folder: RunFolder, run: Run) -> None:
    folder.append(rows(run)[:1])
    folder.records_file.write_bytes(folder.records_file.read_bytes()[:-1])
    assert folder.read() == ([], None)


def test_what_is_appended_after_a_half_written_line_is_not_lost(folder: RunFolder, run: Run) -> None:
    """As when a sweep marks a run whose worker was killed while it wrote."""
    folder.append(rows(run))
    whole = folder.records_file.read_bytes()
    folder.records_file.write_bytes(whole[:-10])
    failed = Status(run.id, 0, "failed", "its worker died")
    folder.append([failed])
    assert folder.read() == (rows(run)[:-1], failed)


@pytest.mark.parametrize("damage", [b"\0\0\0\0", b'{"run": ', b"", b"\xff\xfe", b"hello"])
@pytest.mark.parametrize("number", [1, 4])
def test_damage_in_the_middle_names_file_and_line(folder: RunFolder, run: Run, damage: bytes, number: int) -> None:
    folder.append([*rows(run), end(run)])
    lines = folder.records_file.read_bytes().split(b"\n")
    lines[number - 1] = damage
    folder.records_file.write_bytes(b"\n".join(lines))
    with pytest.raises(UserError, match=f"{re.escape(str(folder.records_file))}, line {number}"):
        folder.read()


@pytest.mark.parametrize("damage", ["3", '{"run": "x"}', '{"status": "done"}'])
def test_json_that_is_no_record_names_file_and_line(folder: RunFolder, run: Run, damage: str) -> None:
    folder.append(rows(run)[:2])
    lines = folder.records_file.read_text().splitlines()
    folder.records_file.write_text("\n".join([lines[0], damage, lines[1], ""]))
    with pytest.raises(UserError, match=f"{re.escape(str(folder.records_file))}, line 2"):
        folder.read()


@pytest.mark.parametrize("damage", ["", "{", "3", "[]", "{}", '{"step": null}', '{"step": "x"}', '{"step": Infinity}'])
def test_a_damaged_last_line_tells_no_step(folder: RunFolder, run: Run, damage: str) -> None:
    assert folder.last_step() is None
    folder.append(rows(run))
    assert folder.last_step() == 2
    with folder.records_file.open("a") as file:
        file.write(f"{damage}\n")
    assert folder.last_step() is None


def test_damage_in_the_middle_is_found_even_if_the_last_line_is_cut_too(folder: RunFolder, run: Run) -> None:
    folder.append(rows(run))
    data = folder.records_file.read_bytes()
    second_to_last = data[:-1].rindex(b"\n") - 5
    folder.records_file.write_bytes(data[:second_to_last] + b"#" + data[second_to_last + 1 : -3])
    with pytest.raises(UserError, match="line 8"):
        folder.read()


@pytest.mark.parametrize("step", [-1, 0, 1, 2, 9])
@pytest.mark.parametrize("ended", [False, True])
def test_rewind_drops_later_records_and_the_status(folder: RunFolder, run: Run, step: int, ended: bool) -> None:
    folder.append([*rows(run), end(run)] if ended else rows(run))
    kept = [row for row in rows(run) if row.step <= step]
    assert folder.rewind(step) == kept
    assert folder.read() == (kept, None)
    assert {file.name for file in folder.path.iterdir()} == {"run.json", "records.jsonl"}


def test_rewind_repairs_a_cut_file(folder: RunFolder, run: Run) -> None:
    folder.append(rows(run))
    folder.records_file.write_bytes(folder.records_file.read_bytes()[:-5])
    folder.rewind(2)
    folder.append([end(run)])
    assert folder.read() == (rows(run)[:-1], end(run)), "without a checksum, line by line"


def test_rewind_of_nothing_writes_nothing(folder: RunFolder) -> None:
    assert folder.rewind(10) == []
    assert not folder.records_file.exists()


def test_the_status_is_the_last_line_and_the_checkpoint_goes(folder: RunFolder, run: Run) -> None:
    folder.append(rows(run))
    folder.save_checkpoint({"next_step": 3})
    folder.finish(end(run), {"w": torch.zeros(2)})
    assert json.loads(folder.records_file.read_text().splitlines()[-1]).items() >= row_values(end(run)).items()
    assert {file.name for file in folder.path.iterdir()} == {"run.json", "records.jsonl", "model.safetensors"}


def test_checkpoint_round_trip(folder: RunFolder) -> None:
    assert folder.load_checkpoint() is None
    generator = torch.Generator().manual_seed(1)
    state = {
        "next_step": 3,
        "seconds": 0.5,
        "noise": generator.get_state(),
        "deep": {"w": torch.rand(2, 3)},
        "no": None,
    }
    folder.save_checkpoint(state)
    back = folder.load_checkpoint()
    assert back is not None and back["next_step"] == 3 and back["no"] is None
    assert torch.equal(back["noise"], state["noise"]) and torch.equal(back["deep"]["w"], state["deep"]["w"])


def test_a_failed_checkpoint_leaves_the_last_one_whole(folder: RunFolder) -> None:
    folder.save_checkpoint({"next_step": 3})
    with pytest.raises(Exception, match="pickle"):
        folder.save_checkpoint({"next_step": 4, "unpicklable": lambda: None})
    assert folder.load_checkpoint() == {"next_step": 3}
    assert {file.name for file in folder.path.iterdir()} == {"run.json", "checkpoint.pt"}


def test_a_checkpoint_with_code_in_it_is_no_checkpoint(folder: RunFolder, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "executed",)

    torch.save({"next_step": Evil()}, folder.checkpoint_file)
    assert folder.load_checkpoint() is None
    assert not (tmp_path / "executed").exists()


SHARED = torch.arange(6.0)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(3, 4),
        torch.tensor(2.0),
        torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.rand(4, 5).t(),
        torch.zeros(0, 3),
        torch.arange(5),
        torch.tensor([float("nan"), float("inf")]),
        torch.rand(3, dtype=torch.float64, requires_grad=True),
        torch.rand(4).bfloat16(),
    ],
    ids=["matrix", "scalar", "channels-last", "transposed", "empty", "integers", "not-finite", "parameter", "bf16"],
)
def test_model_round_trip(folder: RunFolder, run: Run, tensor: torch.Tensor) -> None:
    folder.finish(end(run), {"some.name": tensor, "other": SHARED})
    back = folder.load_model()
    assert set(back) == {"some.name", "other"}
    assert back["some.name"].dtype == tensor.dtype and back["some.name"].shape == tensor.shape
    torch.testing.assert_close(back["some.name"], tensor.detach(), rtol=0, atol=0, equal_nan=True, check_stride=False)


def test_a_model_with_shared_weights_can_be_saved(folder: RunFolder, run: Run) -> None:
    weights = {"one": SHARED, "two": SHARED, "part": SHARED[:3]}
    folder.finish(end(run), weights)
    back = folder.load_model()
    assert all(torch.equal(back[name], weight) for name, weight in weights.items())


# damage


def test_a_checkpoint_vouches_for_the_records_it_continues(
    folder: RunFolder, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    written = rows(run)
    folder.append(written[:3])
    folder.append(written[3:6])
    folder.save_checkpoint({"next_step": 2})
    folder.append(written[6:])
    assert folder.load_checkpoint() == {"next_step": 2}
    assert folder.rewind(1) == written[:6]
    assert folder.load_checkpoint() == {"next_step": 2}, "rewinding changes no byte that is kept"
    lines = folder.records_file.read_bytes().splitlines(keepends=True)
    folder.records_file.write_bytes(b"".join(lines[:3]))
    assert folder.read() == (written[:3], None), "whole in itself"
    assert folder.load_checkpoint() is None and not folder.checkpoint_file.exists()
    assert folder.read() == ([], None) and folder.records_file.with_suffix(".damaged").exists()
    assert "lacks rows that checkpoint.pt continues" in caplog.text and "begins anew" in caplog.text


def test_emptied_or_missing_records_beside_a_checkpoint_begin_anew(folder: RunFolder, run: Run) -> None:
    for empty in (True, False):
        folder.append(rows(run))
        folder.save_checkpoint({"next_step": 3})
        folder.records_file.write_bytes(b"") if empty else folder.records_file.unlink()
        assert folder.load_checkpoint() is None


def test_a_checkpoint_of_another_run_is_none(folder: RunFolder, tmp_path: Path, run: Run) -> None:
    other = RunFolder(tmp_path, replace(run, trial=3))
    other.create()
    other.save_checkpoint({"next_step": 3})
    folder.checkpoint_file.write_bytes(other.checkpoint_file.read_bytes())
    assert folder.load_checkpoint() is None and not folder.checkpoint_file.exists()


def test_records_of_an_ended_run_that_were_cut_short_are_damage(folder: RunFolder, run: Run) -> None:
    folder.append(rows(run))
    folder.finish(end(run), {"w": torch.zeros(2)})
    lines = folder.records_file.read_bytes().splitlines(keepends=True)
    for text in (b"".join(lines[:-1]), b""):
        folder.records_file.write_bytes(text)
        with pytest.raises(UserError, match=r"records\.jsonl is cut short \(its run has ended and has a model\)"):
            folder.read()
        status = folder.status()
        assert status is not None and status.status == "failed" and "cut short" in status.reason
    with RunLock(folder.path):
        assert folder.reopen(retry=True) == ([], None)
    assert not folder.model_file.exists() and folder.model_file.with_suffix(".damaged").exists()


def test_penalties_of_an_ended_run_reach_as_far_as_its_records(tmp_path: Path, run: Run) -> None:
    folder = RunFolder(tmp_path, replace(run, track=("penalties",)))
    folder.create()
    for step in range(2):
        folder.append_penalties([PenaltyRecord(folder.run.id, step, "scene1", 1.0, 2.0, 3.0, 4.0)])
        folder.append([Record(folder.run.id, step, "scene1", "out", 0.5, 1.0, 1.0)])
    folder.append([Status(folder.run.id, 1, "done", "")])
    assert len(folder.read_penalties()) == 2
    first, _ = folder.penalties_file.read_bytes().splitlines(keepends=True)
    folder.penalties_file.write_bytes(first)
    with pytest.raises(UserError, match=r"penalties\.jsonl lacks evaluations of its run"):
        folder.read_penalties()


def test_rows_of_another_run_are_refused(folder: RunFolder, run: Run) -> None:
    folder.append([replace(rows(run)[0], run="0123456789abcdef")])
    with pytest.raises(UserError, match="line 1: a row of another run"):
        folder.read()


def test_a_damaged_audit_is_named_and_older_ones_are_read(folder: RunFolder) -> None:
    folder.save_audit({"sentence": "It follows colour."})
    assert folder.read_audit() == {"sentence": "It follows colour."}
    text = folder.audit_file.read_text()
    folder.audit_file.write_text(text.replace("colour", "colors"))
    with pytest.raises(UserError, match=r"audit\.json is damaged .*: delete it, and audit the model again"):
        folder.read_audit()
    folder.audit_file.write_text('{"sentence": "Old."}')
    assert folder.read_audit() == {"sentence": "Old."}
    folder.audit_file.write_text('{"sentence": 3}')
    with pytest.raises(UserError, match='"sentence" must be a text'):
        folder.read_audit()


def test_a_long_reason_is_cut(folder: RunFolder, run: Run) -> None:
    folder.append([Status(run.id, 0, "failed", "x" * 100_000)])
    status = folder.status()
    assert status is not None and 1000 < len(status.reason) <= 10_000
