"""Runs on a folder of images that changed between them: two datasets of one name, told apart and found by it."""

import re
from pathlib import Path

import pytest

from commands import Command, standard_json
from domainwise.data.sources.folder import image_folder
from domainwise.engine.train import train
from domainwise.protocol.dataset_names import matching, titles
from domainwise.protocol.runs import Run
from domainwise.reports.page.write import write_page
from domainwise.sweeps.plan_run import plan_run
from handmade_records import write_run
from small_datasets import make_folder, picture


def run_on(photos: Path) -> Run:
    facts = {"steps": 2, "evaluate_every": 1, "hparams": {"batch_size": 4}, "image_size": 32}
    return plan_run(image_folder(photos), "ERM", ["lab"], **facts)  # type: ignore[arg-type]


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A run before and one after an image was added."""
    photos = make_folder(tmp_path / "chg")
    write_run(tmp_path / "runs", run_on(photos))
    picture(1000).save(photos / "lab" / "cat" / "new.png")
    write_run(tmp_path / "runs", run_on(photos))
    return tmp_path / "runs"


STATES = {"1" * 16: "chg #111111", "2" * 16: "chg #222222", f"{'1' * 16},skip-bad": "chg #111111,skip-bad"}


def test_titles_tell_datasets_apart_where_they_must() -> None:
    names = {f"/a/chg#{state}": told for state, told in STATES.items()}
    assert titles([*names, *names, "PACS", "/a/other#3333333333333333"]) == {
        **names,
        "PACS": "PACS",
        "/a/other#3333333333333333": "other",
    }
    copies = ["/a/chg#1111111111111111", "/b/chg#1111111111111111"]
    assert titles(copies) == {name: name for name in copies}
    assert matching("chg", [*names, "PACS"], Path()) == set(names)
    assert matching("chg #222222", names, Path()) == {"/a/chg#2222222222222222"}
    assert matching("PACS", ["PACS", *names], Path()) == {"PACS"}


def test_tables_and_pages_of_both_have_titles_of_their_own(domainwise: Command, changed: Path) -> None:
    shown = re.findall(r"(chg.*): accuracy on", domainwise("table", changed, "--format", "markdown").out)
    assert len(set(shown)) == 2 and all(re.fullmatch("chg #[0-9a-f]{6}", name) for name in shown)
    text = write_page(changed)[0].read_text()
    assert all(f"<h2>{name}</h2>" in text and f"{name}: accuracy on" in text for name in shown)
    told = standard_json(domainwise("table", changed, "--json").out)["tables"]
    assert [table["called"] for table in told] == shown


def test_a_name_takes_all_that_have_it(domainwise: Command, changed: Path) -> None:
    first, second = re.findall(r"(chg.*): accuracy on", domainwise("table", changed, "--format", "markdown").out)
    for name in ("chg", first, second):
        assert domainwise("figure", "curves", changed, "--dataset", name, "--json").status == 0
    wrong = domainwise("figure", "curves", changed, "--dataset", "chk")
    assert wrong.is_one_line_error and "known: chg #" in wrong.err


def test_models_are_those_of_the_images_that_are_there(domainwise: Command, changed: Path) -> None:
    photos = changed.parent / "chg"
    (photos / "lab" / "cat" / "new.png").unlink()
    before = train(run_on(photos), changed.parent / "models", device="cpu").run
    picture(1000).save(photos / "lab" / "cat" / "new.png")
    now = train(run_on(photos), changed.parent / "models", device="cpu").run
    assert before.id != now.id
    for names in ([], ["--dataset", "chg"]):
        told = standard_json(domainwise("audit", changed.parent / "models", *names, "--json").out)
        assert [found["run"] for found in told["audits"]] == [now.id]
    picture(1001).save(photos / "lab" / "cat" / "newer.png")
    refused = domainwise("audit", changed.parent / "models")
    assert refused.is_one_line_error and re.search("has runs of chg #.*, chg #.*: name one", refused.err)
