"""`train` and `sweep` on a folder of the user's own images."""

import json
from pathlib import Path

import pytest

from commands import Command
from domainwise.data.sources.folder import image_folder
from domainwise.nets.weights import WEIGHTS
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.plan_run import plan_run
from small_datasets import DOMAINS, make_folder

FEW = ("--hparam", "batch_size=2", "--steps", 2, "--device", "cpu")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, and a data root without weights."""
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path / "root"))
    (tmp_path / "root").mkdir()
    return make_folder(tmp_path / "photos")


def trained(domainwise: Command, *arguments: object) -> Run:
    result = domainwise("train", *arguments, *FEW, "--json")
    assert result.status == 0, result.err
    return Run.from_description(json.loads(result.out)["run"])


def with_weights(root: Path) -> Path:
    file = root / "weights" / WEIGHTS["resnet18"].file
    file.parent.mkdir()
    file.touch()
    return file


# train


def test_averaged_weights_are_the_models_unless_told_otherwise(
    photos: Path, tmp_path: Path, domainwise: Command
) -> None:
    given = ("train", "--data", photos, "--test-domain", DOMAINS[0], *FEW, "--out", tmp_path / "model")
    told = json.loads(domainwise(*given, "--average", "ema", "--json").out)
    assert told["run"]["average"] == "ema" and "(EMA)" in told["weights"]
    averaged = told["averaged"]
    assert averaged["average"] == "ema" and len(averaged["scores"]) == len(told["final"]) > 0
    assert averaged["scores"] != told["final"]
    best = json.loads(domainwise(*given, "--average", "ema", "--save", "best", "--json").out)
    assert best["weights"].startswith("weights of step ") and best["id"] == told["id"]
    plain = json.loads(domainwise(*given, "--average", "none", "--json").out)
    assert "averaged" not in plain and plain["final"] == told["final"]
    wrong = domainwise(*given, "--average", "mean")
    assert wrong.status == 2 and wrong.err.endswith("'mean': choose none, ema, sma or swad (--average)\n")


def test_a_folder_needs_no_code_and_trains_on_every_domain(photos: Path, tmp_path: Path, domainwise: Command) -> None:
    result = domainwise("train", "--data", photos, *FEW, "--out", tmp_path / "model")
    assert result.status == 0
    assert "DAT on photos, unseen none" in result.out
    for domain in DOMAINS:
        assert f"{domain} (trained on)" in result.out
    assert "network: small-cnn from scratch at 64 pixels" in result.err
    assert "domainwise weights get resnet18" in result.err


def test_a_domain_may_be_left_out_and_the_size_chosen(photos: Path, tmp_path: Path, domainwise: Command) -> None:
    where = ("--out", tmp_path / "model")
    run = trained(domainwise, "--data", photos, "--test-domain", "lab", "--image-size", 16, *where)
    assert (run.train_domains, run.test_domains, run.image_size) == (("clinic", "street"), ("lab",), 16)
    assert run.network == "small-cnn" and run.augmentation == "none"
    assert trained(domainwise, "--dataset", photos, "--test-domain", 1, "--image-size", 16, *where) == run
    augmented = trained(domainwise, "--data", photos, "--augmentation", "domainbed", "--image-size", 16, *where)
    assert augmented.augmentation == "domainbed"


def test_stray_files_are_noted(photos: Path, tmp_path: Path, domainwise: Command) -> None:
    (photos / "readme.txt").touch()
    result = domainwise("train", "--data", photos, *FEW, "--out", tmp_path / "model")
    assert "note: ignored 1 item that cannot be an image: readme.txt\n" in result.err


def test_a_bad_image_stops_a_training_with_exit_2_or_is_left_out(
    photos: Path, tmp_path: Path, domainwise: Command
) -> None:
    bad = photos / "lab" / "cat" / "001.png"
    bad.write_bytes(b"")
    arguments = ("train", "--data", photos, "--network", "small-cnn", *FEW, "--out", tmp_path / "model")
    result = domainwise(*arguments)
    assert result.is_one_line_error
    assert f"cannot decode {bad}: the file is empty" in result.err and "--skip-bad" in result.err
    result = domainwise(*arguments, "--skip-bad")
    assert result.status == 0 and result.err == f"note: left out {bad}: the file is empty\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "photos", "--dataset", "PACS"), "give either --dataset NAME or --data DIR"),
        (
            ("--dataset", "PACS", "--skip-bad"),
            "only images of a folder can be left out: other data are complete (--skip-bad)",
        ),
        (("--data", "nowhere"), "is not a folder: images belong at DIR/<domain>/<class>/<image>"),
        (("--data", "PACS"), "is not a folder"),
        (("--dataset", "./nowhere"), "is not a folder"),
        (("--data", "photos", "--network", "small-cnn", "--test-domain", "labb"), "unknown domain of photos 'labb'"),
        (("--data", "photos", "--network", "small-cnn", "--image-size", "4"), "must be at least 8 pixels"),
        (("--data", "photos", "--weights", "nothing.pth"), "no weights nothing.pth"),
    ],
)
def test_mistakes_are_one_line(
    photos: Path, monkeypatch: pytest.MonkeyPatch, domainwise: Command, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(photos.parent)
    result = domainwise("train", *arguments, *FEW)
    assert result.is_one_line_error and message in result.err


@pytest.mark.parametrize("command", ["train", "sweep"])
@pytest.mark.parametrize("small", ["lab", "street"])
def test_a_domain_too_small_to_be_split_stops_before_anything_is_written(
    photos: Path, tmp_path: Path, domainwise: Command, small: str, command: str
) -> None:
    """Whether it would be trained on or left out."""
    for file in sorted((photos / small).rglob("*.png"))[3:]:
        file.unlink()
    kind = {"train": ("--test-domain", "street"), "sweep": ("--algorithms", "ERM", "--hparams", 1, "--trials", 1)}
    where = ("--network", "small-cnn", "--out", tmp_path / "out")
    result = domainwise(command, "--data", photos, *kind[command], *where, *FEW)
    assert (
        result.status == 2 and not result.out and f"photos/{small}: 3 images; a domain needs at least 5" in result.err
    )
    assert not (tmp_path / "out").exists()


# the network


def test_with_weights_a_folder_begins_with_a_pretrained_network(
    photos: Path, tmp_path: Path, domainwise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Run] = []

    def stop(run: Run, *_: object, **__: object) -> None:
        planned.append(run)
        raise KeyboardInterrupt

    file = with_weights(tmp_path / "root")
    monkeypatch.setattr("domainwise.engine.train.train", stop)
    told = []
    for network in (("--network", "auto"), ("--network", "small-cnn")):
        result = domainwise("train", "--data", photos, *network, "--device", "cpu")
        told.append(result.err)
    pretrained, small = planned
    assert f"network: resnet18 from the weights {file} at 224 pixels" in told[0] and "--network small-cnn" in told[0]
    assert (pretrained.network, pretrained.image_size, pretrained.augmentation) == ("resnet18", 224, "domainbed")
    assert pretrained.weights == f"{file.name}#{WEIGHTS['resnet18'].sha256[:16]}"
    assert pretrained.hparams["lr"] == 5e-5 and pretrained.hparams["batch_size"] == 32
    assert (small.network, small.image_size, small.augmentation, small.weights) == ("small-cnn", 64, "none", "")
    assert small.hparams["lr"] == 1e-3 and "network:" not in told[1]


def test_what_a_network_wants_is_the_same_in_runs_and_plans(photos: Path) -> None:
    run = plan_run(str(photos), "ERM", "lab", network="resnet18-scratch")
    assert (run.image_size, run.augmentation, run.steps, run.evaluate_every) == (224, "domainbed", 5001, 300)
    plan = plan_sweep(str(photos), ("ERM",), draws=2, trials=1, test_domains=("lab",), network="resnet18-scratch")
    first, second = plan.runs()
    assert first == run
    assert 1e-5 <= float(second.hparams["lr"] or 0) <= 10**-3.5, "searched in the ranges of large images"
    own = plan_run(str(photos), "ERM", "lab", network="resnet18-scratch", image_size=96, augmentation="none", steps=7)
    assert (own.image_size, own.augmentation, own.steps) == (96, "none", 7)
    assert plan_run("PACS", "ERM", "photo", network="small-cnn").image_size == 224, "published protocols stay"


# sweep


def test_a_sweep_of_a_folder(photos: Path, tmp_path: Path, domainwise: Command, quick_workers: None) -> None:
    (photos / "lab" / "cat" / "001.png").write_bytes(b"")
    search = ("--hparams", 1, "--trials", 1, "--algorithms", "ERM", "--workers", 1, "--out", tmp_path / "out", *FEW)
    arguments = ("sweep", "--data", photos, "--skip-bad", "--network", "small-cnn", "--image-size", 16, *search)
    result = domainwise(*arguments, "--json")
    assert result.status == 0, result.err
    told = json.loads(result.out)
    assert told["standing"]["done"] == 3
    (table,) = told["tables"]
    assert table["dataset"] == image_folder(photos, skip_bad=True).name and table["columns"] == list(DOMAINS)
    again = domainwise(*arguments)
    assert again.status == 0 and "photos: accuracy on the unseen domain" in again.out
    assert (
        "3/3 done" in domainwise("status", tmp_path / "out").out
        or "3 done" in domainwise("status", tmp_path / "out").out
    )


def test_a_sweep_without_data_is_one_line(domainwise: Command) -> None:
    result = domainwise("sweep", "--hparams", 1)
    assert result.is_one_line_error and "--data DIR for your own images" in result.err
