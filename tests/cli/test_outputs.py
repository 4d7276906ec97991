"""Where commands write their one file: its folder is made, and a place where none can be is found before the work."""

import warnings
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from commands import Command
from domainwise.cli.bench.steps import Bench
from domainwise.data.sources.check import check
from domainwise.reports import pictures
from domainwise.reports.page import write
from domainwise.reports.style import any_script
from handmade_records import a_run, write_run
from small_datasets import make_folder


@pytest.fixture
def domainwise(domainwise: Command) -> Command:
    """In a folder with the records of a run, a folder of images, and nothing else."""
    write_run(Path("runs"), a_run("scene1"))
    make_folder(Path("photos"))
    return domainwise


WRITERS = (
    "figure curves runs --out",
    "report runs --out",
    "cam runs --out",
    "perturbations runs --out",
    "audit runs --out",
    "shift photos --out",
    "bench --device cpu --out",
    "data check photos --preview",
)


@pytest.mark.parametrize("command", WRITERS)
def test_a_place_where_no_file_can_be_is_one_line_before_the_work(
    domainwise: Command, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(write, "render", lambda *_: pytest.fail("a page was made"))
    monkeypatch.setattr(Bench, "rows", lambda *_: pytest.fail("something was timed"))
    option = command.split()[-1]
    Path("taken.png").mkdir()
    Path("file").write_text("in the way")
    before = sorted(Path().rglob("*"))
    for place, complaint in {
        "taken.png": f"taken.png is a folder: name a file ({option})",
        "file/x.png": f"cannot write to file (File exists): choose another folder ({option})",
        f"{'long' * 80}.png": f"(File name too long): choose another file ({option})",
    }.items():
        told = domainwise(*command.split(), place)
        assert told.is_one_line_error and complaint in told.err, told
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    "command", [command for command in WRITERS if command.startswith(("figure", "report", "data"))]
)
def test_the_folder_of_a_file_is_made(domainwise: Command, command: str) -> None:
    assert domainwise(*command.split(), "new/folder/x.png").status == 0
    assert [path.name for path in Path("new/folder").iterdir()] == ["x.png"]


@pytest.mark.parametrize(
    ("command", "work"),
    {
        "features photos --network resnet18 --out file/x.safetensors": "features.extract_features",
        "features photos --network resnet18 --out file/x": "features.extract_features",
        "interpolate runs/run --out file/x": "interpolate.interpolate",
    }.items(),
)
def test_a_place_where_no_folder_can_be_is_one_line_before_the_work(
    domainwise: Command, monkeypatch: pytest.MonkeyPatch, command: str, work: str
) -> None:
    monkeypatch.setattr(f"domainwise.models.{work}", lambda *_, **__: pytest.fail("the work was done"))
    Path("file").write_text("in the way")
    told = domainwise(*command.split())
    assert told.is_one_line_error and "cannot write to file" in told.err and "another folder (--out)" in told.err, told


@pytest.mark.parametrize("command", [command for command in WRITERS if not command.startswith(("report", "bench"))])
def test_a_picture_of_another_kind_is_refused_by_the_name_of_its_option(domainwise: Command, command: str) -> None:
    told = domainwise(*command.split(), "odd")
    assert told.is_one_line_error and "odd: a picture's name ends in .png" in told.err
    assert told.err.rstrip().endswith(f"({command.split()[-1]})")


@pytest.mark.parametrize("command", ["figure curves absent", "report absent"])
def test_a_folder_of_runs_that_is_not_there_is_not_made(domainwise: Command, command: str) -> None:
    assert domainwise(*command.split()).is_one_line_error and not Path("absent").exists()


@pytest.mark.parametrize(
    "name", ["twelve", "W" * 40, "猫と犬の写真", "a folder with a name of many words that goes on"]
)
def test_the_title_of_a_small_preview_is_not_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(pictures, "save", lambda figure, _: drawn.append(figure))
    found = check(make_folder(tmp_path / name, ("a", "b"), ("x",), count=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pictures.folder_samples(found, tmp_path / "p.png")
    (figure,) = drawn
    with any_script():
        figure.draw_without_rendering()
        (title,) = (text for text in figure.texts if "one image" in text.get_text().replace("\n", " "))
        place = title.get_window_extent()
    assert place.x0 >= 0 and place.x1 <= figure.bbox.width and place.y1 <= figure.bbox.height
