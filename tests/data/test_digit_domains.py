"""Digits: files in the published formats, made here; domains that are absent; the real files where they are."""

import bz2
import io
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS
from domainwise.data.environments import Environments
from domainwise.data.sources.digit_files import read_libsvm, read_mat, read_mnist_m
from domainwise.data.sources.digits import MNIST_FILES, embedded_digits
from domainwise.engine.train import train
from domainwise.paper.presets import reproduction
from domainwise.sweeps.collection import is_companion
from domainwise.sweeps.events import Settings
from domainwise.sweeps.plan_run import plan_run
from small_datasets import REAL, write_mnist

random = np.random.default_rng(0)


def colours(count: int) -> np.ndarray:
    return random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def write_mat(file: Path, images: np.ndarray, labels: list[int]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    savemat(file, {"X": np.moveaxis(images, 0, 3), "y": np.array(labels, np.uint8)[:, None]}, do_compression=True)
    return file


def write_usps(file: Path, values: np.ndarray, labels: list[int]) -> Path:
    """Rows as published; -1, the commonest value, is written like any other."""
    lines = (
        f"{label + 1} " + " ".join(f"{i + 1}:{v:g}" for i, v in enumerate(row)) + " "
        for label, row in zip(labels, values.reshape(len(labels), -1), strict=True)
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines).encode() + b"\n"
    file.write_bytes(bz2.compress(text) if file.suffix == ".bz2" else text)
    return file


def write_mnist_m(root: Path, images: np.ndarray, labels: list[int], packed: bool) -> None:
    """The public layout: both halves, in no order, with a list of labels each."""
    root.mkdir(parents=True, exist_ok=True)
    files = {"mnist_m/mnist_m_train_labels.txt": b"00000000.png 3\n"}
    for number, image in reversed(list(enumerate(images))):
        png = io.BytesIO()
        Image.fromarray(image).save(png, "PNG")
        files[f"mnist_m/mnist_m_test/{number:08}.png"] = png.getvalue()
    files["mnist_m/mnist_m_train/00000000.png"] = b"not a picture: this half is never read"
    lines = "".join(f"{number:08}.png {label}\n" for number, label in enumerate(labels))
    files["mnist_m/mnist_m_test_labels.txt"] = lines.encode()
    if not packed:
        for name, data in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        return
    with tarfile.open(root / "mnist_m.tar.gz", "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


LABELS = [0, 9, 4, 1, 1, 7]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """All five domains in small."""
    write_mnist(tmp_path, test=10)
    write_mat(tmp_path / "svhn" / "test_32x32.mat", colours(6), [10 if n == 0 else n for n in LABELS])
    write_mat(tmp_path / "syn" / "synth_test_32x32.mat", colours(6), LABELS)
    write_usps(tmp_path / "usps" / "usps.t.bz2", random.uniform(-1, 1, (6, 16, 16)), LABELS)
    write_mnist_m(tmp_path, colours(6), LABELS, packed=True)
    return tmp_path


def load(root: Path) -> Environments:
    return DATASETS["Digits"].load(root)


def test_all_five_domains_in_order_with_their_digits(root: Path) -> None:
    data = load(root)
    assert dict(data.sizes) == {"MNIST": 60, "SVHN": 6, "MNIST-M": 6, "SYN": 6, "USPS": 6} and not data.absent
    assert data.shape == (3, 32, 32) and data.low.eq(0).all() and data.high.eq(1).all()
    for domain in ("SVHN", "MNIST-M", "SYN", "USPS"):
        assert data.labels[data.rows(domain)].tolist() == LABELS, domain
    assert data.labels[:60].equal(embedded_digits().labels[:60])


def test_mnist_is_resized_by_lanczos_and_repeated(root: Path) -> None:
    grey = Image.fromarray(embedded_digits().images[7].numpy()).resize((32, 32), Image.Resampling.LANCZOS)
    assert np.array_equal(load(root).images[7].numpy(), np.stack([np.asarray(grey)] * 3))


def test_matlab_images_keep_rows_columns_and_channels(tmp_path: Path) -> None:
    images = colours(3)
    read, labels = read_mat(write_mat(tmp_path / "x.mat", images, [10, 1, 9]))
    assert np.array_equal(read, images.transpose(0, 3, 1, 2)) and labels.tolist() == [0, 1, 9]


@pytest.mark.parametrize("name", ["usps.t.bz2", "usps.t"])
def test_libsvm_values_are_grey_levels_and_labels_start_at_one(tmp_path: Path, name: str) -> None:
    values = np.full((2, 16, 16), -1.0)
    values[0, 3, 5], values[1] = 1.0, 0.2
    read, labels = read_libsvm(write_usps(tmp_path / name, values, [0, 9]))
    assert labels.tolist() == [0, 9] and read.shape == (2, 3, 32, 32)
    assert (read[1] == 153).all(), "(0.2 + 1) / 2 of 255"
    bright = read[0, 0].astype(float)
    assert bright[6:8, 10:12].min() > 100 and bright[14:].max() == 0, "the one bright pixel stays at row 3, column 5"


def test_libsvm_leaves_out_zeros(tmp_path: Path) -> None:
    (tmp_path / "usps.t").write_text("3 1:-1 256:1\n")
    read, labels = read_libsvm(tmp_path / "usps.t")
    assert labels.tolist() == [2] and read[0, 0, 16, 16] == 128


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_m_is_read_from_its_archive_or_its_folder(tmp_path: Path, packed: bool) -> None:
    images = colours(6)
    write_mnist_m(tmp_path, images, LABELS, packed)
    read, labels = read_mnist_m(tmp_path / ("mnist_m.tar.gz" if packed else "mnist_m/mnist_m_test_labels.txt"))
    assert np.array_equal(read, images.transpose(0, 3, 1, 2)) and labels.tolist() == LABELS


def test_training_goes_on_without_the_domains_that_are_absent(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for file in ("svhn/test_32x32.mat", "mnist_m.tar.gz"):
        (root / file).unlink()
    plan = {"hparams": {"batch_size": 4}, "steps": 2}
    run = plan_run("Digits", "ERM", ["SYN", "USPS"], network="mlp", **plan)
    assert run.train_domains == ("MNIST",) and run.held_out == 0
    outcome = train(run, root / "runs", device="cpu", data_root=root)
    assert {(r.domain, r.split) for r in outcome.records} == {("SYN", "in"), ("USPS", "in")}
    assert "is without SVHN, MNIST-M: domainwise data get Digits" in caplog.text
    everything = plan_run("Digits", "ERM", ["SVHN", "SYN"], network="mlp", **plan)
    for attempt in (
        lambda: train(everything, root / "runs", device="cpu", data_root=root),
        lambda: Settings(root / "runs", "cpu", root).check([everything]),
    ):
        with pytest.raises(UserError, match=r"SVHN not found: looked in .*test_32x32.mat.*SYN,USPS") as caught:
            attempt()
        assert str(root) in str(caught.value) and "domainwise data get Digits" in str(caught.value)


def test_digits_are_trained_as_published_and_reported_by_the_last_model() -> None:
    (plan,) = reproduction("dig", algorithms=["DAT"])
    for run in plan.runs():
        assert (run.hparams["lr"], run.hparams["batch_size"], run.steps) == (1e-4, 32, 10_001)
        assert (run.train_domains, run.test_domains) == (("MNIST",), ("SVHN", "MNIST-M", "SYN", "USPS"))


def test_two_test_domains_of_a_dataset_with_roles_are_a_result_of_their_own() -> None:
    assert not is_companion(plan_run("Digits", "ERM", ["SYN", "USPS"]))
    assert is_companion(plan_run("PACS", "ERM", ["photo", "sketch"]))


def test_mnist_and_one_other_domain_must_be_there(root: Path) -> None:
    for file in ("svhn/test_32x32.mat", "mnist_m.tar.gz", "syn/synth_test_32x32.mat", "usps/usps.t.bz2"):
        (root / file).unlink()
    with pytest.raises(UserError, match="SVHN not found"):
        load(root)
    (root / "mnist" / MNIST_FILES[0]).unlink()
    with pytest.raises(UserError, match=f"MNIST not found.*{MNIST_FILES[0]}"):
        load(root)


def test_a_count_that_differs_from_the_published_is_a_note(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(root)
    assert "USPS has 6 digits (published: 2,007)" in caplog.text


DAMAGED = {
    "svhn/test_32x32.mat": [b"", b"MATLAB 5.0 MAT-file" + bytes(300), None],
    "usps/usps.t.bz2": [b"", b"BZh9", None, bz2.compress(b"1 1:2\n"), bz2.compress(b"1 257:1\n"),
                        bz2.compress(b"0 1:1\n"), bz2.compress(b"1 0:1\n"), bz2.compress(b"one 1:1\n")],
    "mnist_m.tar.gz": [b"", b"<html>sign in</html>", None],
}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), [(n, c) for n, contents in DAMAGED.items() for c in contents])
def test_damaged_files_are_named_in_one_line(root: Path, name: str, content: bytes | None) -> None:
    file = root / name
    file.write_bytes(file.read_bytes()[:-20] if content is None else content)
    with pytest.raises(UserError, match=f"{re.escape(str(file))}.* damaged or not ") as caught:
        load(root)
    assert "\n" not in str(caught.value)


def test_a_list_that_names_images_that_are_not_there_is_an_error(tmp_path: Path) -> None:
    write_mnist_m(tmp_path, colours(2), [1, 2, 3], packed=True)
    with pytest.raises(UserError, match="1 images of its list are missing"):
        read_mnist_m(tmp_path / "mnist_m.tar.gz")


@pytest.mark.skipif(not (REAL / "mnist_m.tar.gz").is_file(), reason="MNIST-M is not in $DOMAINWISE_DATA")
def test_the_real_digits() -> None:
    data = load(REAL)
    sizes = {"MNIST": 10_000, "SVHN": 26_032, "MNIST-M": 9_001, "SYN": 9_553, "USPS": 2_007}
    assert dict(data.sizes) == {domain: sizes[domain] for domain in sizes if domain not in data.absent}
    counts = torch.bincount(data.labels[data.rows("USPS")]).tolist()
    assert counts == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177], "the published test half"
    assert data.labels[:5].tolist() == [5, 0, 4, 1, 9], "MNIST's first training digits"
    assert data.labels[data.rows("MNIST-M")][:5].tolist() == [7, 2, 1, 0, 4], "MNIST's first test digits, recoloured"
