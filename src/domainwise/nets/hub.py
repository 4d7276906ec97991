"""The files of backbones from the Hugging Face hub, its cache or a local folder: found, identified and described.

A folder holds config.json (the architecture), model.safetensors, also in parts, and preprocessor_config.json (how the
model reads images). Weights in other formats are not read and no code of a repository is executed. A run records the
commit of the hub, or a fingerprint of the folder's files.
"""

import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from domainwise.core import files
from domainwise.core.errors import UserError, one_line
from domainwise.core.parsing import parse_any, read_file
from domainwise.protocol.network_names import HubName, is_hub
from domainwise.protocol.runs import WeightsReference

CONFIG = "config.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
PART = re.compile(r"model-\d+-of-(?P<total>\d{1,6})\.safetensors")
WANTED = (CONFIG, *PROCESSORS, *WEIGHTS, "model.safetensors.index.json", "README.md")
"""All files of a repository that are fetched."""
LARGEST = 1 << 26
FAMILIES = {
    "hf:NAME": "Any image model of transformers, by its name on the hub or as a folder: hf:facebook/dinov2-base.",
    "timm:NAME": "Any model of timm: timm:vit_base_patch16_224.augreg_in21k.",
}
"""What lists say of the names that are not in them."""


@dataclass(frozen=True)
class ImageFacts:
    """How a model reads images: size in pixels, mean and std per channel; None where its files do not say."""

    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def missing_package(library: str, package: str) -> UserError:
    """The error for a library that is not installed."""
    return UserError(f"{library}: networks need {package}: pip install 'domainwise[{library}]'", argument="network")


def import_timm() -> Any:
    """timm, or a UserError that says why not."""
    with _importing("timm", "timm"):
        import timm
    return timm


def import_transformers() -> Any:
    """transformers with all that a backbone needs of it, or a UserError that says why not."""
    with _importing("hf", "transformers"):
        import transformers
        from transformers import MODEL_MAPPING, AttentionInterface, AutoModel  # noqa: F401 (now they are imported)
    return transformers


@contextmanager
def _importing(library: str, package: str) -> Iterator[None]:
    """Says whether a package is missing or fails, as some do where torchvision does not fit torch."""
    try:
        yield
    except (ImportError, RuntimeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise missing_package(library, package) from None
        cause: BaseException = error
        while further := cause.__cause__ or cause.__context__:
            cause = further
        reason = one_line(cause)
        advice = "install it again"
        if "torchvision" in reason:
            advice = f"install a torchvision that fits torch{'' if package == 'timm' else ', or none'}"
        raise UserError(f"{package} cannot be imported ({reason}): {advice}", argument="network") from None


def cache_folder() -> Path:
    """The cache of the hub, which other tools share."""
    if folder := os.environ.get("HF_HUB_CACHE"):
        return Path(folder).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def folder(network: str) -> Path:
    """The folder of a backbone's files. Those of the hub that are not in its cache are downloaded."""
    name = HubName.parse(network)
    path = name.folder or cached(name) or download(name)
    try:
        described = (path / CONFIG).is_file()
    except OSError as error:  # a path that is too long, or may not be read
        raise UserError(f"{name}: {path} cannot be read ({error.strerror})", argument="network") from None
    if not described:
        raise UserError(f"{name}: there is no {CONFIG} in {path}: give a folder that holds a model", argument="network")
    if missing := _missing_weights(path):
        advice = "save the model with save_pretrained" if missing == WEIGHTS[0] else "fetch or copy it again"
        raise UserError(
            f"{name}: there is no {missing} in {path}, and other formats are not read: {advice}", argument="network"
        )
    return path


def cached(name: HubName) -> Path | None:
    """The snapshot in the hub's cache, if all of it is there; its folder is named by the commit."""
    repository = cache_folder() / f"models--{name.repository.replace('/', '--')}"
    revision = name.revision or "main"
    reference = repository / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshots = repository / "snapshots"
    exact = snapshots / commit
    beginning = [] if len(commit) < 7 or not snapshots.is_dir() else list(snapshots.glob(f"{_plain(commit)}*"))
    match = exact if (exact / CONFIG).is_file() else beginning[0] if len(beginning) == 1 else None
    return match if match is not None and not _missing_weights(match) else None


def download(name: HubName) -> Path:
    """Fetches the files of a backbone into the hub's cache; an interrupted download continues."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise missing_package(name.library, "huggingface_hub") from None
    try:
        path = snapshot_download(
            name.repository, revision=name.revision or None, cache_dir=cache_folder(), allow_patterns=list(WANTED)
        )
    except Exception as error:  # of the network, the hub, or the disk: each library has its own
        reason = one_line(error)
        raise UserError(
            f"{name} is not in the hub's cache {cache_folder()} and cannot be fetched ({type(error).__name__}: "
            f"{reason}): check the name and the connection, or give a folder: {name.library}:./FOLDER",
            argument="network",
        ) from None
    return Path(path)


def reference(network: str) -> str:
    """What a run records as its weights: "hf:NAME@commit#commit", or a folder with the fingerprint of its files."""
    name, path = HubName.parse(network), folder(network)
    plain = f"{name.library}:{name.source}{f'@{path.name}' if name.folder is None else ''}"
    return str(WeightsReference(plain, folder_fingerprint(path, plain)))


def folder_fingerprint(path: Path, network: str) -> str:
    """Sixteen characters that identify the files: of the hub's commit, or of a digest of a local folder's files."""
    if HubName.parse(network).folder is None:
        return path.name[:16]
    known = [path / CONFIG, *(file for name in PROCESSORS if (file := path / name).is_file()), *weights_files(path)]
    content = "".join(f"{file.name} {files.fingerprint(file)}\n" for file in known)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def configuration(network: str) -> dict[str, Any]:
    """The architecture of a backbone, as a model's folder keeps it: the library, its configuration and the pooling."""
    name = HubName.parse(network)
    return {"library": name.library, "pooling": name.pooling, "config": _json(folder(network) / CONFIG)}


def image_facts(network: str | None) -> ImageFacts:
    """How a network's own files say that it reads images; nothing for one that is not from a hub."""
    return _image_facts(str(folder(network))) if network and is_hub(network) else ImageFacts()


@cache
def _image_facts(path: str) -> ImageFacts:
    config = _json(Path(path) / CONFIG)
    if isinstance(timm := config.get("pretrained_cfg"), Mapping):
        shape = timm.get("input_size")
        size = shape[-1] if isinstance(shape, Sequence) and shape else None
        return ImageFacts(_size(size), *_mean_and_std(timm, "mean", "std", Path(path) / CONFIG))
    processor: Mapping[str, Any] = {}
    for file in (Path(path) / name for name in PROCESSORS):
        if file.is_file():
            processor = _json(file)
            nested = processor.get("image_processor")
            processor = nested if isinstance(nested, Mapping) else processor
            break
    vision = config.get("vision_config")
    usual = (vision if isinstance(vision, Mapping) else config).get("image_size")
    cropped = processor.get("crop_size") if processor.get("do_center_crop", True) else None
    size = _size(cropped) or _size(processor.get("size")) or _size(usual)
    if not processor:
        return ImageFacts(size)
    if processor.get("do_normalize") is False:
        return ImageFacts(size, (0.0,) * 3, (1.0,) * 3)
    return ImageFacts(size, *_mean_and_std(processor, "image_mean", "image_std", file))


def cached_names() -> Iterator[tuple[str, Path]]:
    """The image models in the hub's cache: name and snapshot; imports no library."""
    for repository in sorted(cache_folder().glob("models--*")):
        source = repository.name.removeprefix("models--").replace("--", "/")
        library, source = ("timm", source.removeprefix("timm/")) if source.startswith("timm/") else ("hf", source)
        try:
            name = HubName.parse(f"{library}:{source}")
            path = cached(name)
            if path is not None and _reads_images(path):
                yield str(name), path
        except UserError:
            continue


def known_names(pattern: str) -> dict[str, str]:
    """Backbones by name, with a summary: of the hub's cache, and for a pattern "timm:..." those that timm knows.

    Only such a pattern imports timm, and with it torch.
    """
    names = {name: "In the hub's cache." for name, _ in cached_names()}
    if pattern.startswith("timm:"):
        timm = import_timm()
        names |= {f"timm:{name}": "Of timm; its weights are fetched from the hub." for name in timm.list_pretrained()}
    return names


def licence(network: str) -> str:
    """The licence that a backbone's README states; empty if it states none or is not here."""
    name = HubName.parse(network)
    path = name.folder or cached(name)
    readme = (path or Path()) / "README.md"
    known = path is not None and readme.is_file()
    text = files.read(readme, limit=LARGEST).decode(errors="replace") if known else ""
    front = text.split("---")[1].splitlines() if text.startswith("---") and text.count("---") > 1 else []
    return next((line.partition(":")[2].strip() for line in front if line.startswith("license:")), "")


def _reads_images(path: Path) -> bool:
    if any((path / name).is_file() for name in PROCESSORS[:1]):
        return True
    config = _json(path / CONFIG)
    return any(key in config for key in ("pretrained_cfg", "image_size", "vision_config"))


def weights_files(path: Path) -> list[Path]:
    """The files of weights in a folder, in order."""
    return sorted(file for pattern in WEIGHTS for file in path.glob(pattern) if file.is_file())


def _missing_weights(path: Path) -> str:
    """The first file of weights that a folder lacks, e.g. the second part of two; empty for none."""
    present = [file.name for file in weights_files(path)]
    part = PART.fullmatch(present[-1]) if present else None
    if WEIGHTS[0] in present or (present and not part):
        return ""
    total = part["total"] if part else ""
    parts = [f"model-{number:0{len(total)}}-of-{total}.safetensors" for number in range(1, int(total or 0) + 1)]
    return next((name for name in parts or [WEIGHTS[0]] if name not in present), "")


def _json(file: Path) -> dict[str, Any]:
    advice = "fetch the model again, or restore the file"
    content = parse_any(read_file(file, advice, LARGEST), file, advice, nan=True)
    if not isinstance(content, dict):
        raise UserError(f"{file} is not a JSON object: {advice}", argument="network")
    return content


def _size(value: Any) -> int | None:
    """Pixels a side: a number, or one of the forms of a processor's configuration."""
    if isinstance(value, Mapping):
        value = next((value[key] for key in ("height", "shortest_edge", "longest_edge") if value.get(key)), None)
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        value = value[-1]
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _mean_and_std(
    described: Mapping[str, Any], mean: str, std: str, file: Path
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and std per channel by their names in a file; None where it does not name them."""
    found: list[tuple[float, ...] | None] = []
    for name, least in ((mean, -math.inf), (std, 0.0)):
        value = described.get(name)
        values = [value] * 3 if isinstance(value, (int, float)) else value
        if value is not None and not (
            isinstance(values, Sequence)
            and len(values) == 3
            and all(isinstance(one, (int, float)) and math.isfinite(one) and one > least for one in values)
        ):
            needed = "three numbers" if name == mean else "three numbers above 0"
            raise UserError(f"{file}: {name} is {value!r}, not {needed}: correct the file", argument="network")
        found.append(None if values is None else tuple(map(float, values)))
    return found[0], found[1]


def _plain(text: str) -> str:
    return "".join(c for c in text if c.isalnum())
