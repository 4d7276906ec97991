"""Names of domains, classes, folders and files with square brackets, as a terminal shows them: as they are."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import commands
from domainwise.cli import main
from small_datasets import make_folder

TRAIN = (
    "train --data photos[i] --algorithm DAT --test-domain [red] --steps 3 --evaluate-every 2 --network small-cnn "
    "--image-size 32 --hparam batch_size=4 --device cpu --out odd[/b]/model"
)


@pytest.fixture(scope="module", autouse=True)
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In a folder with images of odd names, and a model trained on them in a place of an odd name."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("names"))
    make_folder(Path("photos[i]"), ("[red]", "[bold]", "street"), ("[b]cat", "[b]dog"), count=40)
    with pytest.raises(SystemExit) as stop:
        main(TRAIN.split())
    assert not stop.value.code
    yield
    os.chdir(before)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (
            TRAIN,
            ["photos[i]", "[red] (unseen)", "[bold] (trained on)", "Model: odd[/b]/model", "Records: odd[/b]/model"],
        ),
        ("compare --data photos[i] --steps 2 --runs odd[/b]/runs --network small-cnn --dry-run", ["see odd[/b]/runs"]),
        ("audit odd[/b]/model --out odd[/b]/a.png", ["[red] (unseen)", "[b]", "Picture: odd[/b]/a.png"]),
        ("cam odd[/b]/model --out odd[/b]/c.png", ["Picture: odd[/b]/c.png"]),
        ("perturbations odd[/b]/model --out odd[/b]/p.png", ["[bold]", "Picture: odd[/b]/p.png"]),
        (
            "shift photos[i] --test-domain [red] --network mlp --image-size 32 --device cpu --out odd[/b]/s.png",
            ["[red]", "Picture: odd[/b]/s.png"],
        ),
        (
            "data check photos[i] --preview odd[/b]/check.png",
            ["[red]", "[b]cat", "[b]dog", "Preview: odd[/b]/check.png"],
        ),
        ("data list --data-root odd[/b]", ["Datasets in odd[/b]"]),
        ("weights list --data-root odd[/b]", ["Weights in odd[/b]/weights and odd[/b]"]),
        ("table odd[/b]/model", ["photos[i]: accuracy", "[red]"]),
        ("report odd[/b]/model --no-models --out odd[/b]/page.html", ["odd[/b]/page.html: 1 run"]),
        ("figure curves odd[/b]/model --out odd[/b]/f.png", ["Figure: odd[/b]/f.png"]),
        ("export-domainbed odd[/b]/model odd[/b]/theirs", ["1 run written to odd[/b]/theirs"]),
        ("evaluate odd[/b]/model --data photos[i]", ["Accuracy of odd[/b]/model on photos[i]", "[red]", "[b]cat"]),
        ("predict odd[/b]/model photos[i]/street --csv odd[/b]/p.csv", ["80 predictions: odd[/b]/p.csv"]),
        ("drift odd[/b]/model photos[i]/street", ["Distance to what odd[/b]/model", "[bold]"]),
        ("export odd[/b]/model --to torch --out odd[/b]/m.pt2", ["odd[/b]/m.pt2: agrees"]),
        ("theory --out odd[/b]", ["Plot: odd[/b]/linearisation.png"]),
    ],
    ids=lambda value: value.split(" --")[0].split(" odd")[0] if isinstance(value, str) else "",
)
def test_names_in_brackets_are_shown(capsys: pytest.CaptureFixture[str], command: str, shown: list[str]) -> None:
    told = commands(capsys)(*command.split())
    text = "".join((told.out + told.err).split())  # a table breaks long names into lines
    assert told.status == 0 and all("".join(words.split()) in text for words in shown), told
