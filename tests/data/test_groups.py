"""Groups never leak: none is in two splits, in 500 random tables; classes keep their shares as far as groups allow."""

import csv
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import Command
from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.data.sources.bursts import groups_of
from domainwise.data.sources.folder import Folder
from domainwise.data.sources.manifest import scan_table
from domainwise.protocol.reading import Reading
from small_datasets import make_folder
from small_tables import rows_of, write


def random_table(file: Path, seed: int) -> Reading:
    """One to four domains, one to six classes, groups of any size that may span domains and classes, and times."""
    luck = np.random.default_rng(seed)
    count, domains, classes = int(luck.integers(2, 120)), int(luck.integers(1, 5)), int(luck.integers(1, 7))
    groups = int(luck.integers(1, max(2, count)))
    rare = luck.dirichlet(np.full(classes, luck.choice([0.2, 1.0, 20.0])))
    rows = []
    for number in range(count):
        domain = int(luck.integers(domains))
        group = int(luck.integers(groups)) if luck.random() < 0.9 else ""
        if luck.random() < 0.7 and group != "":
            group = f"{domain}-{group}"
        label = f"class {luck.choice(classes, p=rare)}"
        rows.append([f"{number}.png", label, f"domain {domain}", group, int(luck.integers(0, 40 * count))])
    with file.open("w", newline="") as text:
        csv.writer(text).writerows([["path", "label", "domain", "group", "time"], *rows])
    return Reading.of(bursts="time:30s" if seed % 2 else "")


def environments(folder: Folder, gap: int) -> Environments:
    """As a loader makes them, with empty images."""
    numbers = {label: number for number, label in enumerate(folder.classes)}
    labels = torch.tensor([numbers[image.label] for image in folder.images])
    sizes = {domain: sum(image.domain == domain for image in folder.images) for domain in folder.domains}
    images = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    data = Environments.from_images(images, labels, sizes, name="random", classes=folder.classes)
    groups = groups_of(folder.images, gap)
    data.__dict__["groups"] = None if groups is None else torch.tensor(groups)
    return data


def test_no_group_is_in_two_splits_in_500_random_tables(tmp_path: Path) -> None:
    divided = 0
    for seed in range(500):
        reading = random_table(tmp_path / "table.csv", seed)
        folder = scan_table(tmp_path / "table.csv", reading)
        data, where = environments(folder, reading.bursts), {}
        for domain in data.domains:
            try:
                parts = data.split(domain, trial=seed % 3)
            except UserError as error:
                of = [image.group for image in folder.images if image.domain == domain]
                shared = set(of) & {image.group for image in folder.images if image.domain != domain}
                assert shared or reading.bursts or len(set(of)) < 2 or len(of) < 5, f"table {seed}: {error}"
                continue
            divided += 1
            assert sorted(torch.cat(list(parts.values())).tolist()) == data.rows(domain).tolist()
            for name, rows in parts.items():
                for row in rows.tolist():
                    image = folder.images[row]
                    if image.group:  # in whichever domain the others of its group are
                        assert where.setdefault(image.group, name) == name, f"table {seed}, group {image.group}"
            if reading.bursts:
                of = {row: name for name, rows in parts.items() for row in rows.tolist()}
                times = sorted((folder.images[row].time, name) for row, name in of.items())
                for (time, name), (later, other) in pairwise(times):
                    assert later - time > 30 or name == other, f"table {seed}: a burst is divided"  # type: ignore[operator]
    assert divided > 800, "most domains could be divided"


@pytest.mark.parametrize("seed", range(8))
def test_classes_keep_their_shares_where_groups_are_small(seed: int) -> None:
    luck = np.random.default_rng(seed)
    labels = torch.from_numpy(luck.choice(4, 2000, p=[0.6, 0.3, 0.07, 0.03]))
    sizes = {"a": 800, "b": 1200}
    data = Environments.from_images(torch.zeros(2000, 1, 1, 1, dtype=torch.uint8), labels, sizes, name="t")
    data.__dict__["groups"] = torch.from_numpy(luck.integers(0, 700, 2000)) + torch.tensor([0] * 800 + [700] * 1200)
    for domain in sizes:
        out = data.split(domain, seed)["out"]
        for label in range(4):
            share = float((labels[out] == label).sum() / (labels[data.rows(domain)] == label).sum())
            assert abs(share - 0.2) < 0.05, f"class {label} of {domain}: {share:.3f} held out"


def test_the_check_names_groups_that_the_table_divides(tmp_path: Path, domainwise: Command) -> None:
    photos = make_folder(tmp_path / "photos")
    rows = rows_of(photos)
    for number, row in enumerate(rows):
        row |= {"patient": number // 2, "split": "val" if number % 4 == 3 else "train"}
    rows[20]["patient"] = rows[0]["patient"]
    file = write(photos / "table.csv", rows)
    warnings = json.loads(domainwise("data", "check", file, "--columns", "group=patient", "--json").out)["warnings"]
    assert any(line.startswith("1 group in several domains: an unseen domain") for line in warnings), warnings
    assert any(line.startswith("9 groups in several given splits") for line in warnings), warnings
