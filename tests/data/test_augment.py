"""Augmentation: each operation beside Pillow's, the parameters beside their definition, and its place in a training."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

import domainwise as dw
from domainwise.core.errors import UserError
from domainwise.data.augment import Augmenter, blend
from domainwise.data.augmentations import AUGMENTATIONS, Augmentation
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.engine.session import Session
from domainwise.kernels.augment import ATTEMPTS, HUE, NUMBERS

BILINEAR = Image.Resampling.BILINEAR
OFF = 0.999999
"""A uniform number above every probability."""


def pictures(count: int = 4, size: tuple[int, int] = (48, 48), seed: int = 0) -> np.ndarray:
    """Smooth coloured pictures with some hard edges, saturated and grey places, uint8 [N, 3, H, W]."""
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8))
        picture = np.array(coarse.resize(size[::-1], Image.Resampling.BICUBIC))
        picture[5:15, 5:20] = rng.integers(0, 256, 3)
        picture[20:25, 5:20] = rng.integers(0, 256)
        picture[30:40, 25:45] = rng.integers(0, 256, (10, 20, 3))
        result.append(picture)
    return np.stack(result).transpose(0, 3, 1, 2)


def environments(size: tuple[int, int] = (48, 48), count: int = 20) -> dw.Environments:
    arrays = {d: (pictures(count, size, s), np.arange(count) % 2) for s, d in enumerate(("a", "b", "c"))}
    return dw.Environments.from_arrays(arrays, name="pictures", mean=[0.5, 0.4, 0.3], std=[0.2, 0.25, 0.3])


def augmenter(name: str = "domainbed", size: tuple[int, int] = (48, 48), seed: int = 0) -> Augmenter:
    return Augmenter(AUGMENTATIONS[name], environments(size), torch.Generator().manual_seed(seed))


def as_image(x: np.ndarray) -> Image.Image:
    return Image.fromarray(x.transpose(1, 2, 0))


def difference(ours: Tensor, theirs: Image.Image) -> Tensor:
    """In units of 1/255."""
    return (255 * ours - torch.from_numpy(np.array(theirs)).permute(2, 0, 1)).abs()


def pillow_hue(image: Image.Image, turn: float) -> Image.Image:
    h, s, v = (np.array(channel) for channel in image.convert("HSV").split())
    turned = (h.astype(int) + round(255 * turn)) % 256
    bands = [Image.fromarray(band.astype(np.uint8)) for band in (turned, s, v)]
    return Image.merge("HSV", bands).convert("RGB")


@pytest.mark.parametrize("size", [(48, 48), (40, 56)])
@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_crop_resize_and_flip_are_pillows(size: tuple[int, int], flip: float) -> None:
    x, net = pictures(40, size), augmenter(size=size)
    boxes = net.parameters(net.draw(40)).boxes
    boxes[0] = torch.tensor([0, 0, *size])
    boxes[1] = torch.tensor([3, 5, 1, 1])
    ours = net.crop(torch.from_numpy(x), boxes, torch.full((40,), flip))
    for image, box, result in zip(x, boxes.int().tolist(), ours, strict=True):
        top, left, height, width = box
        theirs = as_image(image).crop((left, top, left + width, top + height)).resize(size[::-1], BILINEAR)
        theirs = ImageOps.mirror(theirs) if flip else theirs
        assert difference(result, theirs).max() <= 1.1
    assert difference(ours[0], ImageOps.mirror(as_image(x[0])) if flip else as_image(x[0])).max() < 1e-2


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.83, 1.0, 1.3, 1.9])
@pytest.mark.parametrize(
    ("enhance", "weights"),
    [
        (ImageEnhance.Brightness, lambda f: (f, 0, 0)),
        (ImageEnhance.Contrast, lambda f: (f, 0, 1 - f)),
        (ImageEnhance.Color, lambda f: (f, 1 - f, 0)),
    ],
)
def test_brightness_contrast_and_saturation_are_pillows(factor: float, enhance: type, weights: Callable) -> None:
    x = pictures()
    ours = blend(torch.from_numpy(x) / 255, torch.tensor([weights(factor)] * len(x)))
    for image, result in zip(x, ours, strict=True):
        assert difference(result, enhance(as_image(image)).enhance(factor)).max() <= 1.6


def test_greyscale_is_pillows() -> None:
    x = pictures()
    ours = blend(torch.from_numpy(x) / 255, torch.tensor([[0.0, 1.0, 0.0]] * len(x)))
    for image, result in zip(x, ours, strict=True):
        assert difference(result, ImageOps.grayscale(as_image(image)).convert("RGB")).max() <= 0.6


@pytest.mark.parametrize("turn", [-0.4, -1 / 3, -0.1, 0.0, 0.05, 0.3, 0.5])
def test_hue_is_pillows(turn: float) -> None:
    x, turn = pictures(), round(255 * turn) / 255
    ours = augmenter().turn_hue(torch.from_numpy(x) / 255, torch.full((len(x),), turn))
    for image, result in zip(x, ours, strict=True):
        wrong = difference(result, pillow_hue(as_image(image), turn))
        assert wrong.max() <= 13 and wrong.mean() < 1.5


def test_hue_turns_back_exactly() -> None:
    net, x = augmenter(), torch.rand(4, 3, 48, 48)
    assert torch.allclose(net.turn_hue(x, torch.zeros(4)), x, atol=1e-6)
    turned = net.turn_hue(x, torch.full((4,), 0.2))
    assert torch.allclose(net.turn_hue(turned, torch.full((4,), -0.2)), x, atol=1e-5)
    third = net.turn_hue(x, torch.full((4,), 1 / 3))
    assert torch.allclose(third, x[:, [2, 0, 1]], atol=1e-5), "a third of a turn: red becomes green"


def pillow(image: Image.Image, box: list[int], flip: bool, steps: list[tuple[int, float]], grey: bool) -> Image.Image:
    """The whole augmentation, in Pillow."""
    top, left, height, width = box
    image = image.crop((left, top, left + width, top + height)).resize(image.size, BILINEAR)
    image = ImageOps.mirror(image) if flip else image
    for operation, value in steps:
        if operation == HUE:
            image = pillow_hue(image, value)
        else:
            kind = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[operation]
            image = kind(image).enhance(value)
    return ImageOps.grayscale(image).convert("RGB") if grey else image


def test_the_whole_chain_in_each_samples_own_order() -> None:
    data, net, n = environments(), augmenter(), 60
    x, numbers = data.images[:n], net.draw(n)
    seen = net.augment(x, numbers) * data.std + data.mean
    factors = (2 * numbers[:, -5:-1] - 1) * 0.3
    factors[:, :HUE] += 1
    orders = numbers[:, -9:-5].argsort(1)
    assert len({tuple(order) for order in orders.tolist()}) > 15
    boxes = net.parameters(numbers).boxes.int().tolist()
    for i in range(n):
        steps = [(operation, factors[i, operation].item()) for operation in orders[i].tolist()]
        flip, grey = bool(numbers[i, -10] < 0.5), bool(numbers[i, -1] < 0.1)
        wrong = difference(seen[i], pillow(as_image(x[i].numpy()), boxes[i], flip, steps, grey))
        assert wrong.mean() < 3, i


def test_batches_and_single_samples_agree_and_compile_without_a_break() -> None:
    net, data = augmenter(), environments()
    numbers = net.draw(16)
    alone = net.augment(data.images[:16], numbers)
    whole = torch.compile(net.augment, fullgraph=True, backend="eager")(data.images[:16], numbers)
    assert torch.allclose(alone, whole, atol=1e-4)


@pytest.mark.parametrize("name", ["domainbed", "oodbench"])
def test_parameters_follow_their_definition(name: str) -> None:
    settings, n, size = AUGMENTATIONS[name], 8_000, 224
    net = Augmenter(settings, environments((size, size), 5), torch.Generator().manual_seed(1))
    numbers = net.draw(n)
    p = net.parameters(numbers)
    top, left, height, width = p.boxes.unbind(1)
    assert (p.boxes == p.boxes.round()).all() and (p.boxes[:, 2:] >= 1).all() and (p.boxes[:, :2] >= 0).all()
    assert (top + height <= size).all() and (left + width <= size).all()

    expected = [reference_box(settings, size, np.random.default_rng(i)) for i in range(n)]
    theirs = torch.tensor(expected, dtype=torch.float32)
    for ours, reference in zip(p.boxes.unbind(1), theirs.unbind(1), strict=True):
        spread = reference.std() / math.sqrt(n)
        assert abs(ours.mean() - reference.mean()) < 5 * spread, "5 standard errors"
        quantiles = torch.tensor([0.1, 0.5, 0.9])
        assert (ours.quantile(quantiles) - reference.quantile(quantiles)).abs().max() <= 3

    close = 5 * 0.5 / math.sqrt(n)
    assert abs(p.flips.mean() - 0.5) < close and abs(p.late[:, 3, 1].mean() - 0.1) < close
    spread = settings.jitter[HUE]
    assert 0.99 * spread < p.turns.abs().max() <= spread and abs(p.turns.mean()) < 0.03 * spread
    orders: dict[str, int] = {}
    factors: dict[str, list[float]] = {"b": [], "c": [], "s": []}
    for early, late, count in zip(p.early.tolist(), p.late.tolist(), p.counts.tolist(), strict=True):
        kinds = []
        for image, grey, mean in (*early[:count], *late[count:3]):
            kinds.append("s" if grey else "c" if mean else "b")
            factors[kinds[-1]].append(image)
        kinds.insert(count, "h")
        orders["".join(kinds)] = orders.get("".join(kinds), 0) + 1
        assert all(weights == [1, 0, 0] for weights in (*early[count:], *late[:count])), "room that is not used"
    assert len(orders) == 24 and all(abs(count / n - 1 / 24) < close / 2 for count in orders.values())
    for values, jitter in zip(factors.values(), settings.jitter, strict=False):
        factor = torch.tensor(values)
        assert factor.min() >= 1 - jitter - 1e-6 and factor.max() <= 1 + jitter + 1e-6
        assert abs(factor.mean() - 1) < 0.01 and abs(factor.std() - jitter / math.sqrt(3)) < 0.01


def reference_box(settings: Augmentation, size: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """RandomResizedCrop as its documentation defines it, one box at a time."""
    for _ in range(ATTEMPTS):
        area = size * size * rng.uniform(*settings.scale)
        ratio = math.exp(rng.uniform(*(math.log(limit) for limit in settings.ratio)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= size and 0 < height <= size:
            return int(rng.integers(0, size - height + 1)), int(rng.integers(0, size - width + 1)), height, width
    return 0, 0, size, size


@pytest.mark.parametrize(("size", "box"), [((48, 48), [0, 0, 48, 48]), ((40, 60), [0, 3, 40, 53])])
def test_a_crop_that_never_fits_is_the_largest_central_one(size: tuple[int, int], box: list[int]) -> None:
    net = augmenter(size=size)
    numbers = net.draw(3)
    numbers[:, :ATTEMPTS], numbers[:, ATTEMPTS : 2 * ATTEMPTS] = 1.0, 1.0
    assert net.parameters(numbers).boxes.tolist() == [box] * 3


def test_settings_are_the_published_ones() -> None:
    domainbed, oodbench = AUGMENTATIONS["domainbed"], AUGMENTATIONS["oodbench"]
    assert (domainbed.scale, domainbed.jitter, domainbed.grey) == ((0.7, 1.0), (0.3,) * 4, 0.1)
    assert (oodbench.scale, oodbench.jitter, oodbench.grey) == ((0.8, 1.0), (0.4,) * 4, 0.1)
    assert domainbed.ratio == oodbench.ratio == (3 / 4, 4 / 3) and domainbed.flip == oodbench.flip == 0.5


def test_the_augmentation_of_spawrious_is_domainbeds_without_a_crop() -> None:
    numbers = augmenter().draw(50)
    plain, uncropped = (augmenter(name).parameters(numbers) for name in ("domainbed", "domainbed-uncropped"))
    height, width = environments().shape[1:]
    assert uncropped.boxes.tolist() == [[0, 0, height, width]] * 50 != plain.boxes.tolist()
    for part in ("flips", "early", "turns", "late", "counts"):
        assert torch.equal(getattr(uncropped, part), getattr(plain, part))
    using = {name for name, data in DATASETS.items() if data.augmentation == "domainbed-uncropped"}
    assert using == {name for name in DATASETS if name.startswith("Spawrious")}


def plan(**choices: object) -> dw.Run:
    data = Dataset.from_environments(environments())
    return dw.plan(data, "ERM", ["c"], steps=6, evaluate_every=3, hparams={"batch_size": 4}, **choices)


def test_training_is_augmented_evaluation_is_clean() -> None:
    data, run = environments(), plan(augmentation="domainbed")
    session, clean = Session(run, data, torch.device("cpu")), Session(plan(), data, torch.device("cpu"))
    x, y = session.batches.draw()
    plain, labels = clean.batches.draw()
    assert x.shape == plain.shape and torch.equal(y, labels), "the same images, changed"
    assert not torch.allclose(x, plain, atol=0.1)
    assert (x >= session.environments.low - 1e-5).all() and (x <= session.environments.high + 1e-5).all()
    assert run.id != plan().id


def test_a_resumed_training_is_augmented_as_if_never_stopped() -> None:
    data, run = environments(), plan(augmentation="oodbench")
    whole = Session(run, data, torch.device("cpu"))
    for _ in range(3):
        whole.step()
    resumed = Session(run, data, torch.device("cpu"))
    resumed.load_state(copy.deepcopy(whole.state()))
    for session in (whole, resumed):
        torch.manual_seed(0)
        for _ in range(3):
            session.step()
    for key, value in whole.algorithm.state_dict().items():
        assert torch.equal(value, resumed.algorithm.state_dict()[key])
    assert torch.equal(whole.batches.draw()[0], resumed.batches.draw()[0])


def test_what_cannot_be_augmented_is_refused() -> None:
    with pytest.raises(UserError, match="unknown augmentation 'domainbad': did you mean 'domainbed'"):
        plan(augmentation="domainbad")
    with pytest.raises(UserError, match=r"augmentation domainbed is for RGB images; ColoredMNIST has inputs of shape"):
        dw.plan("ColoredMNIST", "ERM", ["-90%"], augmentation="domainbed")


def test_numbers_are_all_used() -> None:
    """Every uniform number changes something, so that none is drawn in vain."""
    net, x = augmenter(), environments().images[:1]
    base = torch.full((1, sum(NUMBERS)), 0.4)
    base[:, ATTEMPTS : 2 * ATTEMPTS] = 0.5
    base[:, -9:-5] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    base[:, -1] = OFF
    before = net.augment(x, base)
    for column in (0, ATTEMPTS, 2 * ATTEMPTS, 2 * ATTEMPTS + 1, -10, -9, -5, -4, -3, -2, -1):
        other = base.clone()
        other[:, column] = 0.05 if column == -1 else 0.6
        assert not torch.equal(net.augment(x, other), before), column


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_captures_it_and_agrees_with_the_cpu() -> None:
    data, random = environments().to("cuda"), torch.Generator("cuda").manual_seed(0)
    net, numbers = Augmenter(AUGMENTATIONS["domainbed"], data, random), augmenter().draw(16)
    images, on_gpu = data.images[:16], numbers.cuda()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours = net.augment(images, on_gpu)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert torch.allclose(ours.cpu(), augmenter().augment(images.cpu(), numbers), atol=1e-3)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(random)
    with torch.cuda.graph(graph):
        seen = net(images)
    graph.replay()
    first = seen.clone()
    graph.replay()
    assert not torch.equal(first, seen), "fresh parameters at every replay"
