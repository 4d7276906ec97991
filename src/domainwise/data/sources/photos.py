"""Photo datasets: PACS, VLCS, OfficeHome, TerraIncognita, DomainNet, SVIRO (DomainBed), NICO (OoD-Bench), MixedSame."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domainwise.data.catalogue import dataset
from domainwise.data.sources import domain_net, nico, terra
from domainwise.data.sources.downloads import Download
from domainwise.data.sources.image_files import in_class_folders, published_images
from domainwise.data.sources.parts import Part, Source
from domainwise.data.sources.published import Listing, photo_dataset

if TYPE_CHECKING:
    from domainwise.data.environments import Environments

SHAPE = (3, 224, 224)
CLASS_FOLDERS = "<domain>/<class>/*.jpg, or another kind of image"


def of_class_folders(
    name: str,
    summary: str,
    part: Part,
    classes: tuple[str, ...],
    source: Source,
    *,
    folders: Sequence[str] = (),
    left_out: Callable[[Path], Set[Path]] = lambda _: frozenset(),
    **fields: Any,
) -> None:
    """Registers a dataset in DomainBed's layout: `part` needs one folder per domain, with one folder per class.

    `folders` are the names of the classes' folders, where they are not those of the classes. `left_out` are images
    that do not count, of the folder that has the domains.
    """
    domains = tuple(names[0].replace("location_", "L") for names in part.needs)

    def listing(root: Path) -> Listing:
        found = part.find(root, name)
        duplicates = left_out(found[0].parent)
        result = Listing(domains)
        for domain, folder in zip(domains, found, strict=True):
            for file, label in in_class_folders(folder, folders or classes):
                if file not in duplicates:
                    result.add(domain, file, label)
        return result

    photo_dataset(name, summary, domains, classes, listing, source, **fields)


def _drive(key: str) -> str:
    return f"https://drive.google.com/uc?id={key}"


PACS = Part(
    "PACS",
    places=("PACS/kfold", "PACS", "pacs/kfold", "pacs", "kfold"),
    needs=(("art_painting",), ("cartoon",), ("photo",), ("sketch",)),
    layout=CLASS_FOLDERS,
    by_hand="download PACS.zip in a browser from https://sketchx.eecs.qmul.ac.uk/downloads/ or "
    + _drive("1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd"),
    archives=(("PACS.zip", "PACS"),),
)
of_class_folders(
    "PACS",
    "Seven kinds of things, painted, as cartoons, photographed and sketched.",
    PACS,
    ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    Source("https://arxiv.org/abs/1710.03077", "none stated; for research", 9_991, (PACS,)),
)

VLCS = Part(
    "VLCS",
    places=("VLCS", "vlcs"),
    needs=(("Caltech101",), ("LabelMe",), ("SUN09",), ("VOC2007",)),
    layout=CLASS_FOLDERS,
    by_hand=f"download VLCS.tar.gz in a browser from {_drive('1skwblH1_okBwxWxmRsp9_qi15hyPpxg8')}",
    archives=(("VLCS.tar.gz", "VLCS"),),
)
of_class_folders(
    "VLCS",
    "Five kinds of things in four collections of photographs.",
    VLCS,
    ("bird", "car", "chair", "dog", "person"),
    Source(
        "https://github.com/facebookresearch/DomainBed",
        "those of its four sources; for research",
        10_729,
        (VLCS,),
    ),
)

OFFICE_HOME = Part(
    "OfficeHome",
    places=("office_home", "OfficeHome", "OfficeHomeDataset_10072016"),
    needs=(("Art",), ("Clipart",), ("Product",), ("Real World", "RealWorld", "Real_World")),
    layout=CLASS_FOLDERS,
    by_hand="download OfficeHomeDataset_10072016.zip in a browser from "
    f"https://www.hemanthdv.org/officeHomeDataset.html or {_drive('1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC')}",
    archives=(("OfficeHomeDataset_10072016.zip", "office_home"), ("office_home.zip", "office_home")),
)
OFFICE_HOME_CLASSES = """
Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards Computer Couch
Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer Helmet Kettle
Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes
Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table Telephone
ToothBrush Toys Trash_Can Webcam
"""
of_class_folders(
    "OfficeHome",
    "65 things of office and home: art, clip art, product pictures and photographs.",
    OFFICE_HOME,
    tuple(OFFICE_HOME_CLASSES.split()),
    Source("https://www.hemanthdv.org/officeHomeDataset.html", "non-commercial research", 15_588, (OFFICE_HOME,)),
)

LILA = "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps"
TERRA = Part(
    "TerraIncognita",
    places=(f"{terra.FOLDER}/{terra.CONVERTED}", terra.FOLDER, "TerraIncognita"),
    needs=tuple((f"location_{location}",) for location in terra.LOCATIONS),
    layout=CLASS_FOLDERS,
    downloads=(
        Download(
            f"{LILA}/{terra.IMAGES}.tar.gz",
            "md5:8143c17aa2a12872b66f284ff211531f",
            f"{terra.FOLDER}/{terra.IMAGES}.tar.gz",
            6_492_615_601,
            unpack=f"{terra.FOLDER}/{terra.IMAGES}",
        ),
        Download(
            f"{LILA}/eccv_18_annotations.tar.gz",
            "md5:66a1f481b44aa1edadf75c9cfbd27aba",
            f"{terra.FOLDER}/eccv_18_annotations.tar.gz",
            2_997_071,
            unpack=f"{terra.FOLDER}/{terra.ANNOTATIONS}",
        ),
    ),
    prepare=terra.convert,
)
of_class_folders(
    "TerraIncognita",
    "Nine kinds of animals, or none, before four camera traps.",
    TERRA,
    terra.CLASSES,
    Source("https://lila.science/datasets/caltech-camera-traps", "CDLA-Permissive-1.0", 24_788, (TERRA,)),
)

DOMAIN_NET = Part(
    "DomainNet",
    places=("domain_net", "DomainNet", "domainnet"),
    needs=tuple((domain,) for domain in domain_net.DOMAINS),
    layout=CLASS_FOLDERS,
    by_hand="download the six archives of the cleaned version in a browser from https://ai.bu.edu/M3SDA/ and unpack "
    "each into the folder domain_net of the data root; put domain_net_duplicates.txt from "
    "https://github.com/facebookresearch/DomainBed (domainbed/misc) beside them",
)
of_class_folders(
    "DomainNet",
    "345 kinds of things as clip art, information graphics, paintings, quick drawings, photographs and sketches.",
    DOMAIN_NET,
    domain_net.CLASSES,
    Source("https://ai.bu.edu/M3SDA/", "fair use; non-commercial research", 586_575, (DOMAIN_NET,)),
    left_out=domain_net.duplicates,
    evaluate_every=1000,
)

CARS = ("aclass", "escape", "hilux", "i3", "lexus", "tesla", "tiguan", "tucson", "x5", "zoe")
SVIRO = Part(
    "SVIRO",
    places=("sviro", "SVIRO", "SVIRO_DOMAINBED"),
    needs=tuple((car,) for car in CARS),
    layout="<car>/<number of the class>/*.png",
    by_hand="download sviro_grayscale_rectangle_classification.zip in a browser from https://sviro.kl.dfki.de/?wpdmdl=1731",
    archives=(("sviro_grayscale_rectangle_classification.zip", "sviro"),),
)
of_class_folders(
    "SVIRO",
    "Who or what sits on the rear seats of ten cars (rendered).",
    SVIRO,
    (
        "empty seat",
        "infant seat",
        "child seat",
        "adult",
        "everyday object",
        "empty infant seat",
        "empty child seat",
    ),
    Source("https://sviro.kl.dfki.de", "CC BY-NC-SA 4.0", 56_000, (SVIRO,)),
    folders=tuple(map(str, range(7))),
)

NICO_IMAGES = Part(
    "NICO",
    places=("NICO", "nico"),
    needs=tuple((folder,) for folder in nico.SUPERCLASS_FOLDERS),
    layout="<superclass>/images/<category>/<context>/*.jpg",
    by_hand="download NICO's animals and vehicles in a browser from https://nico.thumedialab.com/ and unpack them as "
    "NICO/animal/images and NICO/vehicle/images in the data root",
)
NICO_LISTS = Part(
    "NICO's mixed split",
    places=("NICO/mixed_split_corrected", "nico/mixed_split_corrected", "nico_splits"),
    needs=tuple((file,) for file in nico.LISTS.values()),
    layout="the corrected lists; those of the first release leaked",
    by_hand="download the folder mixed_split_corrected in a browser from https://github.com/m-Just/OoD-Bench "
    "and put it into the folder NICO of the data root",
)


@dataset(
    domains=tuple(nico.LISTS),
    classes=nico.CLASSES,
    shape=SHAPE,
    network="resnet18-scratch",
    steps=5001,
    scale="image",
    evaluate_every=200,
    validation=("validation",),
    unseen=("test",),
    held_out=0.0,
    augmentation="oodbench",
    selection="validation-domain",
    resizable=True,
    source=Source(
        "https://nico.thumedialab.com/", "see its page; lists: MIT (OoD-Bench)", 4_080, (NICO_IMAGES, NICO_LISTS)
    ),
)
def NICO(root: Path, size: int) -> Environments:
    """Animal or vehicle, where forest, beach, grass and snow go with the one or the other (OoD-Bench's mixed split)."""
    folders = NICO_IMAGES.find(root, "NICO")
    listed = {
        domain: nico.read_list(file, folders)
        for domain, file in zip(nico.LISTS, NICO_LISTS.find(root, "NICO"), strict=True)
    }
    return published_images("NICO", listed, classes=nico.CLASSES, root=root, size=size, published=4_080)


MIXED_CLASSES = (
    "dog",
    "bird",
    "wheeled vehicle",
    "reptile",
    "carnivore",
    "insect",
    "musical instrument",
    "primate",
    "fish",
)
MIXED = Part(
    "ImageNet-9",
    places=("bg_challenge", "imagenet9", "ImageNet-9", "in9", ""),
    needs=(("mixed_same/val",), ("mixed_rand/val",)),
    layout="<set>/val/<class>/*.JPEG",
    by_hand="download backgrounds_challenge_data.tar.gz in a browser from "
    "https://github.com/MadryLab/backgrounds_challenge/releases",
    archives=(("backgrounds_challenge_data.tar.gz", "bg_challenge"),),
)


@dataset(
    domains=("Mixed-Same", "Mixed-Rand"),
    classes=MIXED_CLASSES,
    shape=SHAPE,
    network="resnet18",
    steps=5001,
    scale="image",
    evaluate_every=300,
    unseen=("Mixed-Rand",),
    augmentation="domainbed",
    resizable=True,
    source=Source("https://github.com/MadryLab/backgrounds_challenge", "ImageNet's: research", 8_370, (MIXED,)),
)
def MixedSame(root: Path, size: int) -> Environments:
    """Nine kinds of things before another background of their own kind; tested before any other's (ImageNet-9)."""
    names = [f"{number:02}_{name}" for number, name in enumerate(MIXED_CLASSES)]
    same, mixed = (in_class_folders(folder, names) for folder in MIXED.find(root, "MixedSame"))
    listed = {"Mixed-Same": same, "Mixed-Rand": mixed}
    return published_images("MixedSame", listed, classes=MIXED_CLASSES, root=root, size=size, published=8_370)
