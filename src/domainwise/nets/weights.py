"""Pre-trained weights: the known files, and where they are looked for.

A run names its weights as "file#fingerprint". The fingerprint is the first 16 digits of the file's SHA-256: a run can
be planned on a machine without the file, and never starts from another file than planned.
"""

from dataclasses import dataclass
from pathlib import Path

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.files import fingerprint
from domainwise.core.phrasing import command
from domainwise.data.catalogue import Dataset, data_root
from domainwise.nets import hub, pretrained_weights
from domainwise.protocol.network_names import is_hub
from domainwise.protocol.runs import WeightsReference

FOLDER = "weights"
"""The folder of weights in the data root; files in the data root itself are found, too."""
NORMALISATION = "RGB in [0, 1], mean (0.485, 0.456, 0.406), std (0.229, 0.224, 0.225)"
IMAGENET = "trained on ImageNet-1k, whose images are for non-commercial research"


@dataclass(frozen=True)
class Weights:
    """Weights known by name. Those without a checksum are not published in this form: the user provides the file."""

    file: str
    summary: str
    licence: str
    sha256: str = ""
    size: int = 0  # bytes
    page: str = ""
    """Where the user gets a file without a checksum."""

    @property
    def url(self) -> str:
        return f"https://download.pytorch.org/models/{self.file}"


WEIGHTS = {
    "resnet18": Weights(
        "resnet18-f37072fd.pth",
        "torchvision's ResNet-18, IMAGENET1K_V1, 69.8 % top-1",
        f"BSD-3-Clause (torchvision); {IMAGENET}",
        "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
        46_830_571,
    ),
    "resnet50": Weights(
        "resnet50-0676ba61.pth",
        "torchvision's ResNet-50, IMAGENET1K_V1, 76.1 % top-1",
        f"BSD-3-Clause (torchvision); {IMAGENET}",
        "0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a",
        102_530_333,
    ),
    "resnet50-imagenet1k-v2": Weights(
        "resnet50-11ad3fa6.pth",
        "torchvision's ResNet-50, IMAGENET1K_V2, 80.9 % top-1; not what published tables start from",
        f"BSD-3-Clause (torchvision); {IMAGENET}",
        "11ad3fa62ca79e40addfd354a8ec4b7c75143b3038b8d2a807fbc68deab379ca",
        102_540_417,
    ),
    "resnet50-augmix": Weights(
        "resnet50_ram-a26f946b.pth",
        "timm's resnet50.ram_in1k (RandAugment and AugMix), DomainBed's start since July 2024",
        f"Apache-2.0 (timm); {IMAGENET}",
        page="https://github.com/huggingface/pytorch-image-models/releases/download/v0.1-weights/"
        "resnet50_ram-a26f946b.pth",
    ),
    "resnet50-v1": Weights(
        "resnet50_imagenet.safetensors",
        "the original ResNet-50 (stride on the first 1x1) under torchvision's key names, e.g. converted from Keras",
        f"as the file you converted (Keras: MIT); {IMAGENET}",
    ),
}


def planned(network: str, weights: str | Path = "", root: Path | None = None) -> str:
    """The reference "file#fingerprint" that a run of this network records; "" is a random start.

    `weights` is a file, or the reference of an earlier plan. By default a network that starts from published weights is
    planned with those, whether their file is here or not.
    """
    file = str(weights)
    if not file and is_hub(network):
        return hub.reference(network)
    if not file:
        name = pretrained_weights(network) if network else None
        if name is None:
            return ""
        known = WEIGHTS.get(name)
        if known is not None and known.sha256:
            return str(WeightsReference(known.file, known.sha256[:16]))
        file = known.file if known is not None else name
    if WeightsReference.parse(file).file:  # a reference already
        return file
    path, top = find(file, root), data_root(root)
    location = path.name if path.parent in (top / FOLDER, top) else str(path.absolute())
    return str(WeightsReference(location, fingerprint(path)))


def for_network(dataset: Dataset, network: str | None) -> Dataset:
    """The dataset with the defaults for this network; the files of a hub's backbone name its image size."""
    return dataset.for_network(network, hub.image_facts(network).size)


def find(file: str, root: Path | None = None) -> Path:
    """The file of this name or path: relative to the working folder, in the weights folder, or in the data root."""
    top = data_root(root)
    places = [files.expanded(file), top / FOLDER / Path(file).name, top / Path(file).name]
    for place in places:
        if place.is_file():
            return place
    known = {weights.file: name for name, weights in WEIGHTS.items() if weights.sha256}
    name = Path(file).name
    page = next((weights.page for weights in WEIGHTS.values() if weights.file == name), "")
    how = f"get it with: {command('weights', 'get', known[name])}" if name in known else "give the path of the file"
    if page:
        how = f"download it from {page} and put it into {top / FOLDER}"
    reason = f"no weights {file}: looked in {places[0].parent}, {places[1].parent} and {top}; {how}"
    raise UserError(reason, argument="" if name in known else "weights")


def locate(reference: str, root: Path | None = None) -> Path:
    """The file, or folder of a hub's backbone, a run was planned with; a missing or changed one is a UserError."""
    file, expected = WeightsReference.parse(reference)
    path = hub.folder(file) if is_hub(file) else find(file, root)
    known = hub.folder_fingerprint(path, file) if is_hub(file) else fingerprint(path)
    if known != expected:
        kind = "folder" if is_hub(file) else "file"
        raise UserError(
            f"{path} is not the {kind} the run was planned with: its SHA-256 begins {known}, "
            f"expected {expected}; put that {kind} there, or plan the run anew with the weights {path}",
            argument="weights",
        )
    return path
