"""Crops of images at their own sizes: as Pillow makes them, alone and in batches, in every kind of training."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

import domainwise as dw
from commands import Command
from domainwise import kernels
from domainwise.core.errors import UserError
from domainwise.data.augment import Augmenter, OriginalsAugmenter, central_boxes, for_augmentation, preparation
from domainwise.data.augmentations import AUGMENTATIONS
from domainwise.data.batches import StreamedBatches
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.data.images import decode as decoding
from domainwise.data.originals import LIMIT, Originals
from domainwise.engine.session import Session, fresh_batches, stream_keys
from domainwise.engine.train import Interrupted, train
from domainwise.kernels.augment import ATTEMPTS, NUMBERS
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run
from short_trainings import saved_results
from small_datasets import DOMAINS, PACS, PACS_CLASSES, make_folder, picture
from small_tables import rows_of, write

NAME = "domainbed-original-size"
SIZE = 28
"""Of the network's images; short sides of originals are at most 32."""
SIZES = ((30, 30), (32, 43), (43, 32), (32, 64), (13, 17), (28, 28), (32, 32), (20, 40))
"""Heights and widths of originals."""
CPU = torch.device("cpu")


def smooth(height: int, width: int, seed: int = 0) -> Image.Image:
    return picture(seed, 5, 5).resize((width, height), Image.Resampling.BICUBIC)


# crops


def data(sizes: tuple[tuple[int, int], ...] = SIZES, network: int = SIZE) -> Environments:
    """One domain of smooth pictures of these sizes."""
    pictures = [np.array(smooth(*size, seed)).transpose(2, 0, 1) for seed, size in enumerate(sizes)]
    pixels = torch.from_numpy(np.concatenate([one.reshape(-1) for one in pictures]))
    resized = torch.zeros(len(sizes), 3, network, network, dtype=torch.uint8)
    arrays = {"a": (resized, torch.zeros(len(sizes), dtype=torch.int64))}
    made = Environments.from_arrays(arrays, name="pictures", classes=["x"], mean=[0.5, 0.4, 0.3], std=[0.2, 0.25, 0.3])
    return replace(made, open_originals=lambda: Originals.of(pixels, sizes))


def augmenter(environments: Environments, seed: int = 0) -> OriginalsAugmenter:
    generator = torch.Generator().manual_seed(seed)
    made = preparation(NAME, for_augmentation(NAME, environments), generator)
    assert isinstance(made, OriginalsAugmenter)
    return made


def originals_of(environments: Environments) -> Originals:
    originals = for_augmentation(NAME, environments).originals
    assert originals is not None
    return originals


def cropped(net: OriginalsAugmenter, places: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
    """One after another, as on a CPU."""
    one_by_one = zip(places.split(1), boxes.split(1), flips.split(1), strict=True)
    return torch.cat([net.crop(*sample) for sample in one_by_one])


def problem(network: int = SIZE) -> tuple[OriginalsAugmenter, Tensor, Tensor, Tensor]:
    """Several crops of every image, among them the whole and a single pixel."""
    environments = data(network=network)
    net, places = augmenter(environments), originals_of(environments).places.repeat(6, 1)
    boxes = net.parameters(net.draw(len(places)), net.sizes(places)).boxes
    boxes[0] = torch.tensor([0, 0, *SIZES[0]])
    boxes[1] = torch.tensor([3, 5, 1, 1])
    return net, places, boxes, (torch.arange(len(places)) % 2).float()


@pytest.mark.parametrize("network", [SIZE, 20, 64], ids=["as large", "smaller", "larger"])
def test_crops_are_pillows_of_the_original(network: int) -> None:
    net, places, boxes, flips = problem(network)
    ours = cropped(net, places, boxes, flips)
    for place, box, flip, result in zip(places.tolist(), boxes.int().tolist(), flips.tolist(), ours, strict=True):
        start, height, width = place
        image = net.pixels[start : start + 3 * height * width].view(3, height, width).permute(1, 2, 0).numpy()
        top, left, tall, wide = box
        part = Image.fromarray(image).crop((left, top, left + wide, top + tall))
        theirs = part.resize((network, network), Image.Resampling.BILINEAR)
        theirs = ImageOps.mirror(theirs) if flip else theirs
        assert (255 * result - torch.from_numpy(np.array(theirs)).permute(2, 0, 1)).abs().max() <= 1.1


@pytest.mark.parametrize("network", [SIZE, 20, 64], ids=["as large", "smaller", "larger"])
def test_whole_batches_are_cropped_as_single_images(network: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, places, boxes, flips = problem(network)
    with monkeypatch.context() as patch:
        patch.setattr(Augmenter, "at_once", staticmethod(lambda _: True))
        together = net.crop(places, boxes, flips)
    assert 255 * (together - cropped(net, places, boxes, flips)).abs().max() < 0.01


def test_a_batch_compiles_without_a_break_and_agrees() -> None:
    net, places, _, _ = problem()
    numbers = net.draw(len(places))
    whole = torch.compile(net.augment, fullgraph=True, backend="eager")(places, numbers)
    assert torch.allclose(net.augment(places, numbers), whole, atol=1e-3)


def test_every_crop_is_inside_of_its_image_and_has_room() -> None:
    sizes = tuple((h, w) for h in (5, 16, 31, 32) for w in (5, 16, 31, 32, 40, 64) if h <= 2 * w and w <= 2 * h)
    net = augmenter(data(sizes))
    places = originals_of(data(sizes)).places.repeat_interleave(2000, 0)
    top, left, tall, wide = net.parameters(net.draw(len(places)), net.sizes(places)).boxes.unbind(1)
    assert (torch.stack([top, left]) >= 0).all() and (torch.stack([tall, wide]) >= 1).all()
    assert (top + tall <= places[:, 1]).all() and (left + wide <= places[:, 2]).all()
    assert max(tall.max(), wide.max()) <= len(net.reach) <= 44


def test_of_an_image_that_is_twice_as_long_only_the_middle_is_cropped() -> None:
    """So nothing is lost by keeping the middle of longer ones."""
    for sizes in ((32, 64),), ((64, 32),):
        net = augmenter(data(sizes))
        boxes = net.parameters(net.draw(2000), torch.tensor([sizes[0]])).boxes
        assert (boxes == central_boxes(torch.tensor(sizes), (3 / 4, 4 / 3))).all()
    settings = [one for one in AUGMENTATIONS.values() if one is not None]
    assert all(one.scale[0] * decoding.LONGEST > max(one.ratio[1], 1 / one.ratio[0]) for one in settings)


def test_central_boxes() -> None:
    sizes = [(h, w) for h in range(1, 60, 3) for w in range(1, 60, 7)]
    for (height, width), box in zip(sizes, central_boxes(torch.tensor(sizes), (3 / 4, 4 / 3)).tolist(), strict=True):
        ratio = min(max(width / height, 3 / 4), 4 / 3)
        tall, wide = min(height, round(width / ratio)), min(width, round(height * ratio))
        assert box == [(height - tall) // 2, (width - wide) // 2, tall, wide]


def test_images_of_the_networks_size_are_cropped_as_before() -> None:
    """The same numbers mean the same boxes, so runs with and without are paired."""
    environments = data(((SIZE, SIZE),) * 4)
    numbers = torch.rand(500, sum(NUMBERS))
    net = augmenter(environments)
    old = preparation("domainbed", for_augmentation("domainbed", environments), torch.Generator())
    assert type(old) is Augmenter
    ours, theirs = net.parameters(numbers, torch.full((500, 2), float(SIZE))), old.parameters(numbers)
    assert all(torch.equal(a, b) for a, b in zip(vars(ours).values(), vars(theirs).values(), strict=True))


def test_boxes_of_earlier_runs_are_as_they_were() -> None:
    """Their definition as it was when all images had one size, bit by bit."""
    height, width, (low, high), limits = 20, 33, (0.7, 1.0), (3 / 4, 4 / 3)
    images = torch.zeros(1, 3, height, width, dtype=torch.uint8)
    environments = Environments.from_arrays({"a": (images, torch.zeros(1, dtype=torch.int64))}, classes=["x"])
    old = preparation("domainbed", environments, torch.Generator())
    assert old is not None and old.central == (0, 3, 20, 27)
    numbers = torch.rand(5000, sum(NUMBERS))
    areas, ratios, place = numbers[:, :ATTEMPTS], numbers[:, ATTEMPTS : 2 * ATTEMPTS], numbers[:, 2 * ATTEMPTS :][:, :2]
    area = (low + (high - low) * areas) * (height * width)
    ratio = (np.log(limits[0]) + np.log(limits[1] / limits[0]) * ratios).exp()
    wide, tall = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (wide >= 1) & (wide <= width) & (tall >= 1) & (tall <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    wide, tall = wide.gather(1, first), tall.gather(1, first)
    top = (place[:, :1] * (height - tall + 1)).floor().minimum(height - tall)
    left = (place[:, 1:] * (width - wide + 1)).floor().minimum(width - wide)
    drawn = torch.cat([top, left, tall, wide], 1)
    expected = torch.where(fits.any(1, keepdim=True), drawn, torch.tensor([0.0, 3.0, 20.0, 27.0]))
    assert torch.equal(old.parameters(numbers).boxes, expected) and not fits.any(1).all()


# training


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Pictures of many sizes; DIR/<domain>/<class>/."""
    folder = make_folder(tmp_path / "photos")
    for number, file in enumerate(sorted(folder.rglob("*.png"))):
        picture(number, *SIZES[number % len(SIZES)]).save(file)
    return folder


def plan(where: Path, augmentation: str = NAME) -> Run:
    facts = {"steps": 6, "evaluate_every": 3, "network": "small-cnn", "image_size": SIZE}
    return plan_run(str(where), "DAT", ["lab"], hparams={"batch_size": 4}, augmentation=augmentation, **facts)


def test_batches_are_those_of_the_images_that_others_see(photos: Path) -> None:
    drawn, found = [], dw.load_dataset(photos, image_size=SIZE)
    for augmentation in (NAME, "domainbed"):
        session = Session(plan(photos, augmentation), found, CPU)
        x, y = session.batches.draw()
        assert (x >= session.environments.low - 1e-5).all() and (x <= session.environments.high + 1e-5).all()
        drawn.append((x, y))
    (ours, y), (others, same) = drawn
    assert ours.shape == others.shape == (2, 4, 3, SIZE, SIZE) and torch.equal(y, same)
    assert not torch.allclose(ours, others, atol=0.1)


def test_a_table_has_the_originals_of_its_folder(photos: Path) -> None:
    table = write(photos / "table.csv", rows_of(photos))
    ours, folder = (originals_of(dw.load_dataset(where, image_size=SIZE)) for where in (table, photos))
    assert torch.equal(ours.pixels, folder.pixels) and torch.equal(ours.places, folder.places)


def test_the_rows_are_those_of_the_images(photos: Path) -> None:
    """With a bad file among them."""
    bad = photos / "clinic" / "dog" / "002.png"
    bad.write_bytes(b"")
    found = find_dataset(str(photos), skip_bad=True).load(image_size=SIZE)
    originals = originals_of(found)
    files = [file for file in sorted(photos.rglob("*.png")) if file != bad]
    assert len(originals.places) == len(found.labels) == len(files)
    for file, (start, height, width), image in zip(files, originals.places.tolist(), found.images, strict=True):
        original = originals.pixels[start : start + 3 * height * width].view(3, height, width)
        stored = Image.open(file)
        resized = stored.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        for ours, theirs in ((original, stored), (image, resized)):
            assert torch.equal(ours, torch.from_numpy(np.array(theirs)).permute(2, 0, 1))


def test_a_published_dataset_is_read_at_its_own_size(tmp_path: Path) -> None:
    make_folder(tmp_path / "PACS", PACS, PACS_CLASSES, count=2)
    run = plan_run("PACS", "ERM", ["sketch"], augmentation=NAME, network="small-cnn", image_size=SIZE)
    assert run.augmentation == NAME and run.id != plan_run("PACS", "ERM", ["sketch"]).id
    opened = originals_of(dw.load_dataset("PACS", tmp_path, SIZE))
    assert opened.places[:, 1:].unique(dim=0).tolist() == [[20, 30]]
    assert LIMIT * 224 == 256


def test_the_default_stays() -> None:
    run = plan_run("PACS", "ERM", ["sketch"], network="resnet18-scratch", precision="bf16")
    assert (run.augmentation, run.id) == ("domainbed", "0e9a700873f7b5b4")


@pytest.mark.parametrize("interrupted", [False, True])
def test_streamed_trainings_leave_the_bits_of_resident_ones(photos: Path, tmp_path: Path, interrupted: bool) -> None:
    run, found = plan(photos), dw.load_dataset(photos, image_size=SIZE)
    train(run, tmp_path / "resident", device="cpu", environments=found)

    def stop(step: int) -> None:
        if interrupted and step == 2:
            raise KeyboardInterrupt

    streamed = {"device": "cpu", "environments": found.to("cpu", streamed=True)}
    if interrupted:
        with pytest.raises((KeyboardInterrupt, Interrupted)):
            train(run, tmp_path / "streamed", progress=stop, checkpoint_seconds=0, **streamed)
    train(run, tmp_path / "streamed", **streamed)
    assert saved_results(run, tmp_path / "resident") == saved_results(run, tmp_path / "streamed")


def test_streamed_batches_come_to_the_same_memory(photos: Path) -> None:
    """Where a captured step reads them."""
    session = Session(plan(photos), dw.load_dataset(photos, image_size=SIZE).to("cpu", streamed=True), CPU)
    batches = session.batches
    assert isinstance(batches, StreamedBatches)
    first, addresses = batches.draw()[0], [part.data_ptr() for part in batches.held]
    assert not torch.equal(batches.draw()[0], first)
    assert [part.data_ptr() for part in batches.held] == addresses and len(addresses) == 3
    assert batches.held[1].numel() == 8 * 3 * 32 * 64, "as many bytes for every choice of images"


def test_our_kernels_leave_originals_to_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.augment, "on_gpu", lambda _: True)
    environments = data()
    old = preparation("domainbed", for_augmentation("domainbed", environments), torch.Generator())
    assert kernels.accelerated("augment", old) is not None
    assert kernels.accelerated("augment", augmenter(environments)) is None


def test_both_stores_count_when_images_are_placed(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = for_augmentation(NAME, dw.load_dataset(photos, image_size=SIZE))
    assert found.originals is not None
    both = found.images.nbytes + found.originals.pixels.nbytes
    monkeypatch.setattr("domainwise.data.environments.free_memory", lambda _: 2 * both)
    there = found.to("meta")
    assert not there.streamed and there.originals is not None
    assert {store.device.type for store in (there.images, there.originals.pixels, there.originals.places)} == {"meta"}
    monkeypatch.setattr("domainwise.data.environments.free_memory", lambda _: 2 * both - 1)
    there = found.to("meta")
    assert there.streamed and there.originals is not None
    assert there.images.device == there.originals.pixels.device == CPU and there.labels.device.type == "meta"


def test_a_resumed_session_continues_and_statistics_are_those_of_the_same_batches(photos: Path) -> None:
    run, found = plan(photos), dw.load_dataset(photos, image_size=SIZE)
    first, second = Session(run, found, CPU), Session(run, found, CPU)
    first.step()
    second.load_state(copy.deepcopy(first.state()))
    assert torch.equal(first.batches.draw()[0], second.batches.draw()[0])
    rows = [found.split(domain, 0)["in"] for domain in run.train_domains]
    once, twice = (list(fresh_batches(run, d, rows, 4, stream_keys(run))) for d in (found, first.environments))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True)) and once[0].shape == (2, 4, 3, SIZE, SIZE)


def test_originals_are_read_only_if_they_are_cropped(photos: Path) -> None:
    found = dw.load_dataset(photos, image_size=SIZE)
    opened = Session(plan(photos), found, CPU).environments
    assert found.originals is None and opened.originals is not None
    assert originals_of(found).pixels is opened.originals.pixels, "opened once"
    assert Session(plan(photos, "domainbed"), opened, CPU).environments.originals is None


@pytest.mark.parametrize("command", ["train", "sweep", "compare"])
def test_commands(photos: Path, tmp_path: Path, domainwise: Command, command: str, quick_workers: None) -> None:
    few = ("--hparam", "batch_size=2", "--steps", 2, "--device", "cpu", "--image-size", SIZE, "--network", "small-cnn")
    further: dict[str, tuple[object, ...]] = {
        "train": ("--algorithm", "ERM", "--test-domain", "lab"),
        "sweep": ("--algorithms", "ERM", "--hparams", 1, "--trials", 1),
        "compare": ("--algorithms", "ERM,DAT", "--trials", 1),
    }
    given = ("--data", photos, "--augmentation", NAME, *few, *further[command], "--out", tmp_path / "out")
    result = domainwise(command, *given)
    assert result.status == 0, result.err


def test_data_without_files_are_refused_in_one_line(photos: Path, domainwise: Command, tmp_path: Path) -> None:
    result = domainwise("train", "--dataset", "BackgroundDigits", "--augmentation", NAME, "--test-domain", 0)
    assert result.is_one_line_error and "is not read from image files: use domainbed (--augmentation)" in result.err
    arrays = replace(dw.load_dataset(photos, image_size=SIZE), open_originals=None)
    with pytest.raises(UserError, match=r"photos-\w+ is not read from image files: use domainbed"):
        dw.fit(arrays, "ERM", steps=2, augmentation=NAME)
    with pytest.raises(UserError, match="photos is not read from image files: use domainbed"):
        train(plan(photos), tmp_path / "out", device="cpu", environments=arrays)


def test_a_model_is_fitted_and_predicts(photos: Path) -> None:
    options = {"network": "small-cnn", "image_size": SIZE, "steps": 2, "hparams": {"batch_size": 2}}
    model = dw.fit(photos, "ERM", augmentation=NAME, device="cpu", **options)
    file = photos / DOMAINS[0] / "cat" / "000.png"
    assert len(model.predict([file])) == 1


def test_files_that_change_between_the_two_readings_are_a_users_error(photos: Path) -> None:
    found = dw.load_dataset(photos, image_size=SIZE)
    (photos / "lab" / "cat" / "000.png").write_bytes(b"")
    with pytest.raises(UserError, match="the images of photos have changed since they were loaded: start again"):
        for_augmentation(NAME, found)
