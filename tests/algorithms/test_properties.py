"""Properties that hold for any input: spaces, identities, records, and the command line under odd names."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commands import Command, commands
from domainwise.algorithms import ALGORITHMS
from domainwise.cli.options import parse_hparams, parse_names
from domainwise.core.errors import UserError
from domainwise.core.seeds import uniform
from domainwise.protocol import spaces
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run
from small_datasets import make_folder

FEW = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
"""The same examples every time, few enough for a suite of minutes."""

RUN = plan_run("BackgroundDigits", "ERM", ["scene1"], steps=3)
ANY_NAME = st.text(min_size=1, max_size=300)
ACCURACY = st.floats(0, 1)
LOSS = st.floats(0, 1e6)


# Spaces


@FEW
@given(
    st.sampled_from(sorted(ALGORITHMS)), st.sampled_from(["small", "image"]), st.integers(0, 10**6), st.integers(0, 99)
)
def test_whatever_is_drawn_is_legal_and_drawn_again_the_same(name: str, scale: Any, draw: int, trial: int) -> None:
    space = spaces.at_scale(ALGORITHMS[name].space, scale)
    values = spaces.draw(space, draw, trial)
    assert values == spaces.draw(space, draw, trial) and list(values) == list(space)
    assert spaces.override(space, values, values, name) == {n: space[n].tidy(v) for n, v in values.items()}


@FEW
@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 10**4), st.integers(0, 9))
def test_one_parameter_more_shifts_no_other(name: str, draw: int, trial: int) -> None:
    space = spaces.at_scale(ALGORITHMS[name].space, "small")
    more = {"another": spaces.Uniform(0, 1, default=0.5), **space}
    values = spaces.draw(more, draw, trial)
    values.pop("another")
    assert values == spaces.draw(space, draw, trial)


@FEW
@given(st.lists(st.one_of(st.text(max_size=9), st.integers()), min_size=1, max_size=3))
def test_uniform_numbers_are_in_range_for_any_keys(keys: list[str | int]) -> None:
    assert 0 <= uniform(*keys) < 1


@FEW
@given(st.text(max_size=12), st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)))
def test_any_value_of_any_hyper_parameter_is_taken_or_refused_in_one_line(name: str, value: Any) -> None:
    for key in (name, "lr", "batch_size", "norm", "loss_cap"):
        try:
            run = plan_run("BackgroundDigits", "DAT", ["scene1"], hparams={key: value})
        except UserError as error:
            assert str(error) and "Traceback" not in str(error)
        else:
            assert run.hparams[key] == value and not isinstance(value, bool)


@FEW
@given(st.text(max_size=40))
def test_pairs_of_name_and_value_never_crash(text: str) -> None:
    try:
        for name, value in parse_hparams([text]).items():
            assert text.startswith(f"{name}=") and not isinstance(value, (list, dict))
    except UserError as error:
        assert repr(text)[:10] in str(error)
    assert all(part and part == part.strip() for part in parse_names(text))


# Identities and records


@FEW
@given(st.integers(0, 99), st.integers(0, 99), st.sampled_from([601, 3, 10**6]), ANY_NAME)
def test_a_run_is_what_its_description_says(draw: int, trial: int, steps: int, variant: str) -> None:
    run = replace(RUN, draw=draw, trial=trial, steps=steps, variant=variant)
    again = Run.from_description(json.loads(json.dumps(run.describe())))
    assert again == run and again.id == run.id
    assert (run.id == RUN.id) == (run == RUN)


@FEW
@given(st.lists(st.tuples(st.integers(0, 999), ANY_NAME, st.sampled_from(["in", "out"]), ACCURACY, LOSS), max_size=8))
def test_records_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, rows: Any) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("run"), RUN)
    folder.create()
    records = [Record(RUN.id, *row, 0.5) for row in rows]
    folder.append(records)
    assert folder.read() == (records, None)
    folder.append([Status(RUN.id, 2, "done", "")])
    assert folder.read() == (records, Status(RUN.id, 2, "done", "")) and folder.status() == folder.read()[1]


@FEW
@given(st.integers(0, 400), st.lists(st.tuples(st.integers(0, 9), ANY_NAME, ACCURACY), min_size=1, max_size=4))
def test_a_file_cut_anywhere_loses_only_the_line_it_was_cut_in(
    tmp_path_factory: pytest.TempPathFactory, cut: int, rows: Any
) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("run"), RUN)
    folder.create()
    records = [Record(RUN.id, step, domain, "in", accuracy, 1.0, 0.5) for step, domain, accuracy in rows]
    folder.append(records)
    whole = folder.records_file.read_bytes()
    kept = whole[: min(cut, len(whole))]
    folder.records_file.write_bytes(kept)
    assert folder.read()[0] == records[: kept.count(b"\n")]
    folder.append(records[:1])
    assert folder.read()[0] == [*records[: kept.count(b"\n")], records[0]]


@FEW
@given(st.binary(max_size=200))
def test_any_bytes_in_a_records_file_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("run"), RUN)
    folder.create()
    folder.records_file.write_bytes(data + b"\n")
    try:
        folder.read()
    except UserError as error:
        assert "line" in str(error)


# The command line


@pytest.fixture
def domainwise(domainwise: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path / "no data"))
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    return domainwise


ODD = ["Krankenhaus Süd", "病院", "-rf", "a" * 200, "<b>bold", "[red]", "100%", "semi;colon", "it's", "…"]
SMALL = ("--network", "mlp", "--image-size", 16, "--steps", 2, "--hparam", "batch_size=2", "--device", "cpu")


def test_odd_names_of_folders_are_names_like_others(domainwise: Command, tmp_path: Path) -> None:
    data = make_folder(tmp_path / "my images (ünïcode)", ODD, ["Küche & Bad", "外"], count=5)
    assert domainwise("data", "check", data).status == 0
    for domain in (ODD[0], ODD[2], ODD[5]):
        result = domainwise(
            "train", "--data", data, f"--test-domain={domain}", *SMALL, "--out", f"out {domain}", "--json"
        )
        assert result.status == 0, result.err
        assert {row["domain"] for row in json.loads(result.out)["final"]} == set(ODD)


@pytest.mark.parametrize(
    ("domains", "classes", "count", "complaint"),
    [
        (["a", "b"], ["x", "y"], 0, "no images"),
        (["a", "b"], ["x"], 5, "class"),
        ([], [], 0, ""),
    ],
    ids=["zero images", "one class", "no domains"],
)
def test_folders_with_nothing_to_learn_are_one_line(
    domains: list[str], classes: list[str], count: int, complaint: str, domainwise: Command, tmp_path: Path
) -> None:
    data = make_folder(tmp_path / "data", domains, classes, count=count)
    data.mkdir(exist_ok=True)
    for command in (("train", "--data", data, *SMALL), ("data", "check", data)):
        result = domainwise(*command)
        assert result.status == 2 and "Traceback" not in result.err + result.out
        assert complaint in result.err + result.out


def test_one_domain_is_enough_for_methods_that_compare_none(domainwise: Command, tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", ["only"], count=5)
    assert domainwise("train", "--data", data, "--algorithm", "DAT", *SMALL, "--out", "dat").status == 0
    refused = domainwise("train", "--data", data, "--algorithm", "CORAL", *SMALL, "--out", "coral")
    assert refused.is_one_line_error and "CORAL needs at least 2 training domains" in refused.err
    assert domainwise("train", "--data", data, "--test-domain", "only", *SMALL).is_one_line_error


@settings(FEW, max_examples=15)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60))
def test_any_word_in_place_of_a_name_is_one_line(capsys: pytest.CaptureFixture[str], word: str) -> None:
    domainwise = commands(capsys)
    for option in ("--dataset", "--algorithm", "--test-domain", "--network", "--device"):
        if word.lower() in ("auto", "cpu", "0", "1", "2", "3"):
            continue
        result = domainwise("train", f"{option}={word}", "--steps", 1)
        assert result.status == 2 and "Traceback" not in result.err, (option, word)


def test_numbers_in_tables_of_nothing(domainwise: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for command in ("table", "status", "report"):
        result = domainwise(command, tmp_path / "empty")
        assert result.status in (0, 2) and "Traceback" not in result.err + result.out
        assert "nan" not in result.out.lower().split()
