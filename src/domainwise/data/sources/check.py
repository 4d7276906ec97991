"""Check a folder of images before training: unreadable files, missing classes, duplicates, what is left out."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, groupby
from pathlib import Path
from statistics import median
from typing import Any

from domainwise.core import files
from domainwise.core.phrasing import counted
from domainwise.data.images.parallel import decode_all
from domainwise.data.images.remote import shown
from domainwise.data.sources.bursts import groups_of
from domainwise.data.sources.folder import Folder, ImageFile, scan
from domainwise.data.sources.near_duplicates import near_pairs
from domainwise.protocol.reading import PLAIN, Reading
from domainwise.protocol.runs import HELD_OUT

UNEVEN = 10
"""Warn if one class has this many times more images than another."""
GREY = ("1", "L", "LA", "I", "I;16", "I;16B")
DIM = 4096
"""16-bit images with all values below this use at most 12 bits, hence at most 4 of their upper 8."""
TINY = 8
"""An image with a side below this many pixels shows nothing: often a placeholder, or a download that failed."""


Relation = Callable[[ImageFile, ImageFile], bool]


@dataclass(frozen=True)
class Check:
    """A folder, and for each of its images either the facts or the reason why it cannot be decoded."""

    folder: Folder
    facts: Mapping[ImageFile, Mapping[str, Any]]
    bad: Mapping[ImageFile, str]

    @cached_property
    def counts(self) -> dict[str, dict[str, int]]:
        """Readable images by domain and class."""
        counts = Counter((image.domain, image.label) for image in self.facts)
        return {d: {c: counts[d, c] for c in self.folder.classes} for d in self.folder.domains}

    @cached_property
    def duplicates(self) -> list[list[ImageFile]]:
        """Groups of images that are equal in every pixel."""
        ordered = sorted(self.facts, key=lambda image: (self.facts[image]["digest"], image.file))
        groups = [list(group) for _, group in groupby(ordered, key=lambda image: self.facts[image]["digest"])]
        return sorted((group for group in groups if len(group) > 1), key=lambda group: group[0].file)

    @cached_property
    def near_duplicates(self) -> list[tuple[ImageFile, ImageFile]]:
        """Pairs of images that look nearly the same, but are not equal; of equal ones, the first stands for all."""
        copies = {image for group in self.duplicates for image in group[1:]}
        images = [image for image in self.facts if image not in copies]
        pairs = near_pairs([self.facts[image]["thumbnail"] for image in images])
        return [(images[i], images[j]) for i, j in pairs]

    @property
    def tiny(self) -> list[ImageFile]:
        return [image for image, fact in self.facts.items() if min(fact["size"]) < TINY]

    @property
    def problems(self) -> list[str]:
        """Errors that would stop a training."""
        lines = [f"cannot decode {self._path(image)}: {reason}" for image, reason in self.bad.items()]
        for domain, counts in self.counts.items():
            if int(HELD_OUT * sum(counts.values())) < 1:
                lines.append(f"domain {domain} has {sum(counts.values())} readable images; it needs at least 5")
        if len(self.folder.classes) < 2:
            lines.append(f"there is one class only ({self.folder.classes[0]}): nothing to tell apart")
        return lines

    @property
    def warnings(self) -> list[str]:
        """Findings that do not stop a training but may spoil its result."""
        lines = self.folder.left_out.lines(harmless=False)
        if tiny := self.tiny:
            few = ", ".join(map(self._path, tiny[:3])) + (", ..." if len(tiny) > 3 else "")
            lines.append(f"{_images(len(tiny))} of less than {TINY} x {TINY} pixels: replace or remove them: {few}")
        if len(self.folder.domains) < 2:
            lines.append("there is one domain only: none can be left out to judge a model on")
        for domain, counts in self.counts.items():
            if missing := [label for label, count in counts.items() if not count]:
                lines.append(f"domain {domain} has no images of {', '.join(missing)}")
            present = {label: count for label, count in counts.items() if count}
            most, least = (f(present, key=lambda c: present[c], default="") for f in (max, min))
            if present and present[most] > UNEVEN * present[least]:
                lines.append(f"domain {domain} is uneven: {present[most]} of {most}, {present[least]} of {least}")
        by_lower = groupby(sorted(self.folder.classes, key=str.lower), key=str.lower)
        for same in (list(names) for _, names in by_lower):
            if len(same) > 1:
                lines.append(f"classes differ only in capital letters: {', '.join(same)}")
        return lines + self._dim() + self._leaks() + self._divided_groups()

    def _divided_groups(self) -> list[str]:
        """Groups whose images the table itself divides: between domains, or between given splits."""
        members: dict[int, list[ImageFile]] = {}
        for image, number in zip(self.folder.images, self._groups or (), strict=False):
            members.setdefault(number, []).append(image)
        kinds: tuple[tuple[Callable[[ImageFile], str], str, str], ...] = (
            (lambda image: image.domain, "in several domains", "an unseen domain of which it is part is not unseen"),
            (lambda image: image.split, "in several given splits", "a model is validated on what it was trained on"),
        )
        lines = []
        for place, where, meaning in kinds:
            if divided := [images for images in members.values() if len(set(map(place, images))) > 1]:
                first = divided[0]
                other = next(image for image in first if place(image) != place(first[0]))
                example = f"{self._path(first[0])} and {self._path(other)}"
                lines.append(f"{counted(len(divided), 'group')} {where}: {meaning}, e.g. {example}")
        return lines

    @cached_property
    def _groups(self) -> list[int] | None:
        """The number of each image's group."""
        return groups_of(self.folder.images, self.folder.reading.bursts)

    @cached_property
    def _largest(self) -> int | None:
        """The largest value of 12-bit data in 16-bit files, which is decoded to nearly black images."""
        largest = max((fact["largest"] for fact in self.facts.values() if fact["largest"] is not None), default=DIM)
        return None if largest >= DIM or self.folder.reading.window is not None else largest

    @property
    def needed_window(self) -> str:
        """The window that makes images of 12-bit data visible; empty if they are."""
        return "" if self._largest is None else f"0:{2 ** max(self._largest, 1).bit_length() - 1}"

    def _dim(self) -> list[str]:
        if self._largest is None:
            return []
        return [
            f"all 16-bit images stay below {DIM} (at most {self._largest} of 65535), nearly black by their upper 8 "
            f"bits: read them with the window {self.needed_window}, here and in every training"
        ]

    def _leaks(self) -> list[str]:
        """Equal and nearly equal images across domains, across classes, and within a domain."""
        equal = [list(combinations(group, 2)) for group in self.duplicates]
        near = [[pair] for pair in self.near_duplicates]
        lines = []
        for related, where, meaning in self._relations():
            for groups, what in ((equal, "image"), (near, "nearly equal pair")):
                first_pairs = (next((p for p in pairs if related(*p)), None) for pairs in groups)
                if pairs := [pair for pair in first_pairs if pair is not None]:
                    example = " and ".join(map(self._path, pairs[0]))
                    lines.append(f"{counted(len(pairs), what)} {where}: {meaning}, e.g. {example}")
        return lines

    def _relations(self) -> list[tuple[Relation, str, str]]:
        """How two equal images can be related, where they lie, and what that means."""
        group = {} if self._groups is None else dict(zip(self.folder.images, self._groups, strict=True))
        given = any(image.split == "val" for image in self.folder.images)

        def may_be_divided(a: ImageFile, b: ImageFile) -> bool:
            return a.domain == b.domain and not given and (not group or group[a] != group[b])

        return [
            (
                lambda a, b: a.domain != b.domain,
                "in several domains",
                "an unseen domain whose images are trained on is not unseen",
            ),
            (lambda a, b: a.label != b.label, "in several classes", "one of their labels is wrong"),
            (
                lambda a, b: a.domain == b.domain and a.split != b.split,
                "in training and validation",
                "a model is validated on what it was trained on",
            ),
            (may_be_divided, "several times in one domain", "copies may be trained on and validated on"),
        ]

    @property
    def notes(self) -> list[str]:
        """What was ignored, and how images that are not plain RGB are decoded."""
        facts = self.facts.values()
        window = self.folder.reading.window
        deep = "the upper 8 bits are used" if window is None else f"greys {window[0]} to {window[1]} become 0 to 255"
        kinds = (
            (sum(fact["mode"] in GREY for fact in facts), "grey: repeated to three channels"),
            (sum(fact["largest"] is not None for fact in facts), f"16-bit: {deep}"),
            (sum(fact["alpha"] for fact in facts), "with transparency: shown on white"),
            (sum(fact["mode"] == "CMYK" for fact in facts), "CMYK: converted to RGB"),
            (sum(fact["turned"] for fact in facts), "turned upright as their EXIF orientation says"),
        )
        seen = [f"{_images(count)} {what}" for count, what in kinds if count]
        return [*self.folder.left_out.lines(harmless=True), *self.folder.further, *self._group_sizes(), *seen]

    def _group_sizes(self) -> list[str]:
        """How many groups there are, where any are known."""
        if self._groups is None:
            return []
        sizes = Counter(self._groups)
        kind = "groups (bursts are groups)" if self.folder.reading.bursts else "groups"
        return [f"{len(sizes):,} {kind} of {_images(len(self._groups))}; the largest has {max(sizes.values()):,}"]

    @property
    def sizes(self) -> dict[str, list[int]]:
        """Width and height of the smallest, the median and the largest image."""
        ordered = sorted((fact["size"] for fact in self.facts.values()), key=lambda size: size[0] * size[1])
        if not ordered:
            return {}
        middle = [round(median(size[side] for size in ordered)) for side in (0, 1)]
        return {"smallest": ordered[0], "median": middle, "largest": ordered[-1]}

    def as_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder.path),
            "domains": self.folder.domains,
            "classes": self.folder.classes,
            "images": len(self.facts),
            "counts": self.counts,
            "groups": None if self._groups is None else len(set(self._groups)),
            "sizes": self.sizes,
            "unreadable": {self._path(image): reason for image, reason in self.bad.items()},
            "duplicates": [[self._path(image) for image in group] for group in self.duplicates],
            "near_duplicates": [[self._path(image) for image in pair] for pair in self.near_duplicates],
            "tiny": [self._path(image) for image in self.tiny],
            "ignored": self.folder.left_out.kinds,
            "problems": self.problems,
            "warnings": self.warnings,
            "notes": self.notes,
        }

    def _path(self, image: ImageFile) -> str:
        inside = isinstance(image.file, Path) and image.file.is_relative_to(self.folder.path)
        return shown(Path(image.file).relative_to(self.folder.path) if inside else image.file)


def check(path: Path, reading: Reading = PLAIN) -> Check:
    """Decodes every image of a folder or table, in parallel."""
    folder = scan(files.resolved(path), reading)
    answers = list(decode_all(folder.files, f"checking {folder.name}", window=reading.window))
    facts = {folder.images[i]: answer for i, answer in answers if "bad" not in answer}
    bad = {folder.images[i]: answer["bad"] for i, answer in answers if "bad" in answer}
    return Check(folder, facts, bad)


def _images(count: int) -> str:
    return f"{count:,} image{'' if count == 1 else 's'}"
