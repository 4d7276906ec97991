"""Environments from any torch Dataset per domain."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, Subset, TensorDataset

import domainwise as dw
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset

PIXELS = np.random.default_rng(0).integers(0, 256, (10, 3, 6, 5), dtype=np.uint8)
LABELS = [number % 2 for number in range(10)]

FORMS: dict[str, Callable[[np.ndarray], object]] = {
    "uint8 tensor": torch.from_numpy,
    "float tensor": lambda x: torch.from_numpy(x).float() / 255,
    "double tensor": lambda x: torch.from_numpy(x).double() / 255,
    "array": lambda x: x,
    "picture": lambda x: Image.fromarray(x.transpose(1, 2, 0)),
}


class Items(TorchDataset[Any]):
    """A dataset as users write them."""

    def __init__(self, form: Callable[[np.ndarray], object] = FORMS["uint8 tensor"], label: Any = int) -> None:
        self.form, self.label = form, label

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError
        return self.form(PIXELS[index]), self.label(LABELS[index])


class Endless(IterableDataset[Any]):
    """One that has no length."""

    def __iter__(self) -> Iterator[Any]:
        items = Items()
        return (items[index] for index in range(len(items)))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_image_gives_the_same_pixels(form: str) -> None:
    data = dw.Environments.from_datasets({"lab": Items(FORMS[form])})
    assert data.images.dtype == torch.uint8 and data.images.tolist() == PIXELS.tolist()
    assert data.labels.tolist() == LABELS and data.domains == ("lab",) and data.classes == ("0", "1")


@pytest.mark.parametrize("label", [int, np.int64, torch.tensor, lambda y: torch.tensor([y])])
def test_every_form_of_label(label: Any) -> None:
    assert dw.Environments.from_datasets({"lab": Items(label=label)}).labels.tolist() == LABELS


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Items(), Endless()], ids=["indexed", "iterable"])
def test_items_keep_their_order_however_many_read_them(dataset: TorchDataset[Any], workers: int) -> None:
    data = dw.Environments.from_datasets({"lab": dataset, "street": Items()}, workers=workers)
    assert data.images.tolist() == [*PIXELS.tolist(), *PIXELS.tolist()]
    assert data.sizes == {"lab": 10, "street": 10}


def test_grey_pictures_have_one_channel_and_flat_ones_get_it() -> None:
    grey = Items(lambda x: Image.fromarray(x[0]))
    flat = Items(lambda x: torch.from_numpy(x[0]).float() / 255)
    data = dw.Environments.from_datasets({"grey": grey, "flat": flat})
    assert (
        data.shape == (1, 6, 5) and data.images[3, 0].tolist() == data.images[13, 0].tolist() == PIXELS[3, 0].tolist()
    )
    clear = Items(lambda x: Image.fromarray(x.transpose(1, 2, 0)).convert("RGBA"))
    assert dw.Environments.from_datasets({"clear": clear}).shape == (3, 6, 5)


def test_vectors_stay_as_they_are() -> None:
    rows = torch.randn(10, 4)
    data = dw.Environments.from_datasets({"lab": TensorDataset(rows, torch.tensor(LABELS))})
    assert data.vectors and torch.equal(data.images, rows)


def test_classes_and_normalisation() -> None:
    named = Items()
    named.classes = ["cat", "dog"]
    data = dw.Environments.from_datasets({"lab": named}, mean=[0.1, 0.2, 0.3], std=[1, 2, 3], name="pets")
    assert data.classes == ("cat", "dog") and data.name == "pets"
    assert data.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert dw.Environments.from_datasets({"a": named, "b": Items()}).classes == ("0", "1"), "they do not agree"
    assert dw.Environments.from_datasets({"lab": named}, classes=["x", "y"]).classes == ("x", "y")


def test_it_trains(tmp_path: Any) -> None:
    data = dw.Environments.from_datasets({"lab": Items(), "street": Items()})
    run = dw.plan(Dataset.from_environments(data), "ERM", "lab", network="mlp", steps=2, hparams={"batch_size": 2})
    assert dw.train(run, tmp_path, device="cpu", environments=data).status.status == "done"


class Second(Items):
    """One whose second item is not like the others."""

    def __init__(self, item: Any) -> None:
        super().__init__()
        self.item = item

    def __getitem__(self, index: int) -> Any:
        return self.item if index == 1 else super().__getitem__(index)


GOOD = torch.from_numpy(PIXELS[0])


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (5, r"d/lab, item 1: an item must be \(image, label\), not int"),
        ((GOOD,), r"must be \(image, label\), not tuple"),
        (("x", 0), "an image must be a tensor or a Pillow image, not str"),
        ((GOOD.int(), 0), r"an image must be uint8, or float in \[0, 1\], not int32"),
        ((GOOD[None], 0), r"must have the shape \(channels, height, width\), not \(1, 3, 6, 5\)"),
        ((GOOD.float() - 3, 0), r"run from .* not within \[0, 1\]: leave normalisation out of .* give mean= and std="),
        ((torch.full((3, 6, 5), torch.nan), 0), "run from nan to nan"),
        ((GOOD[:, :4], 0), r"item 1 has shape \(3, 4, 5\), the first is \(3, 6, 5\): resize"),
        ((GOOD, 0.5), "a label must be a whole number from 0, not 0.5"),
        ((GOOD, "cat"), "a label must be a whole number"),
        ((GOOD, torch.tensor([1, 0])), "a label must be a whole number"),
        ((GOOD, -1), "labels run from -1 to 1 for 2 classes"),
    ],
)
def test_what_is_wrong_with_an_item_is_one_line(item: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        dw.Environments.from_datasets({"lab": Second(item)}, name="d")
    assert "\n" not in str(error.value)


def test_what_is_wrong_comes_out_of_a_worker_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^datasets/lab, item 1: an item must be \(image, label\), not int$"):
        dw.Environments.from_datasets({"lab": Second(5)}, workers=1)


def test_too_little_is_a_users_error() -> None:
    with pytest.raises(UserError, match="datasets/lab: the dataset is empty"):
        dw.Environments.from_datasets({"lab": Subset(Items(), [])})
    with pytest.raises(UserError, match="a domain needs at least 5"):
        dw.fit(dw.Environments.from_datasets({"lab": Subset(Items(), [1, 2])}), "ERM", steps=1, device="cpu")
    with pytest.raises(UserError, match="no domains given"):
        dw.Environments.from_datasets({})


def test_the_datasets_own_errors_are_not_hidden() -> None:
    class Broken(Items):
        def __getitem__(self, index: int) -> Any:
            raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        dw.Environments.from_datasets({"lab": Broken()})
