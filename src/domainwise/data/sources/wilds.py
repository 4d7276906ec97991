"""Datasets listed by tables: Camelyon17 and FMoW of WILDS; Waterbirds and CelebA, with groups class x place or sex.

The tables are those of WILDS (Koh et al. 2021, https://arxiv.org/abs/2012.07421), whose package is not needed. A name
that ends in "-official" has WILDS' own validation and test domains; without it every domain is left out in turn, as in
DomainBed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from domainwise.core.errors import UserError
from domainwise.data.sources.parts import Part, Source
from domainwise.data.sources.published import Listing, photo_dataset
from domainwise.data.sources.table_files import read_table

OFFICIAL = "-official"
VALIDATION, TEST = " (validation)", " (test)"
WILDS_PAGE = "https://wilds.stanford.edu/datasets/"


def _rows(file: Path, *names: str) -> Iterator[tuple[str, ...]]:
    """The values of some columns, row by row."""
    columns = read_table(file, names)
    for name in names:
        if name not in columns.names:
            raise UserError(f"{file} has no column {name!r}: fetch it again")
    return zip(*(columns.values[name] for name in names), strict=True)


def _number(value: str, file: Path, below: int) -> int:
    """A class, split or place; WILDS writes some of these as 1.0."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not (number.is_integer() and 0 <= number < below):
        raise UserError(f"{file}: {value[:40]!r} is not a number from 0 to {below - 1}: fetch it again")
    return int(number)


# Camelyon17

HOSPITALS = tuple(f"hospital_{number}" for number in range(5))
CAMELYON_VALIDATION, CAMELYON_TEST = HOSPITALS[1], HOSPITALS[2]
CAMELYON_CLASSES = ("normal", "tumor")
CAMELYON = Part(
    "Camelyon17",
    places=("camelyon17_v1.0", "camelyon17", "Camelyon17"),
    needs=(("metadata.csv",), ("patches",)),
    layout="metadata.csv and patches/patient_<patient>_node_<node>/*.png, as WILDS publishes them",
    by_hand=f"download camelyon17_v1.0.tar.gz in a browser from {WILDS_PAGE}#camelyon17",
    archives=(("camelyon17_v1.0.tar.gz", "camelyon17_v1.0"),),
)


def _camelyon(root: Path, *, official: bool) -> Listing:
    table, patches = CAMELYON.find(root, f"Camelyon17{OFFICIAL if official else ''}")
    listing = Listing(HOSPITALS, whole=(CAMELYON_VALIDATION, CAMELYON_TEST) if official else ())
    for patient, node, x, y, tumor, center, split in _rows(
        table, "patient", "node", "x_coord", "y_coord", "tumor", "center", "split"
    ):
        place = f"patient_{patient}_node_{node}"
        hospital = HOSPITALS[_number(center, table, 5)]
        held_out = official and hospital not in listing.whole and _number(split, table, 4) == 1
        file = patches / place / f"patch_{place}_x_{x}_y_{y}.png"
        listing.add(hospital, file, _number(tumor, table, 2), held_out=held_out)
    return listing


CAMELYON_SOURCE = Source(f"{WILDS_PAGE}#camelyon17", "CC0", 455_954, (CAMELYON,))
photo_dataset(
    "Camelyon17",
    "Patches of lymph nodes from five hospitals, with a tumor or without.",
    HOSPITALS,
    CAMELYON_CLASSES,
    lambda root: _camelyon(root, official=False),
    CAMELYON_SOURCE,
    evaluate_every=100,
)
photo_dataset(
    f"Camelyon17{OFFICIAL}",
    "The same by WILDS' split: three hospitals to train on, one to select by, one to test on.",
    HOSPITALS,
    CAMELYON_CLASSES,
    lambda root: _camelyon(root, official=True),
    CAMELYON_SOURCE,
    size=96,
    augmentation="none",
    validation=(CAMELYON_VALIDATION,),
    unseen=(CAMELYON_TEST,),
    selection="validation-domain",
)


# FMoW

FMOW_NAMES = """
airport airport_hangar airport_terminal amusement_park aquaculture archaeological_site barn border_checkpoint
burial_site car_dealership construction_site crop_field dam debris_or_rubble educational_institution
electric_substation factory_or_powerplant fire_station flooded_road fountain gas_station golf_course
ground_transportation_station helipad hospital impoverished_settlement interchange lake_or_pond lighthouse
military_facility multi-unit_residential nuclear_powerplant office_building oil_or_gas_facility park
parking_lot_or_garage place_of_worship police_station port prison race_track railway_bridge recreational_facility
road_bridge runway shipyard shopping_mall single-unit_residential smokestack solar_farm space_facility stadium
storage_tank surface_mine swimming_pool toll_booth tower tunnel_opening waste_disposal water_treatment_facility
wind_farm zoo
"""
FMOW_CLASSES = tuple(FMOW_NAMES.split())
REGIONS = ("Africa", "Americas", "Asia", "Europe", "Oceania")
NO_REGION = "Other"
FMOW = Part(
    "FMoW",
    places=("fmow_v1.1", "fmow", "FMoW"),
    needs=(("rgb_metadata.csv",), ("country_code_mapping.csv",), ("images",)),
    layout="rgb_metadata.csv, country_code_mapping.csv and images/rgb_img_<row>.png, as WILDS publishes them",
    by_hand=f"download fmow_v1.1.tar.gz in a browser from {WILDS_PAGE}#fmow",
    archives=(("fmow_v1.1.tar.gz", "fmow_v1.1"),),
)


def _fmow(root: Path, *, official: bool) -> Listing:
    """Regions; by WILDS' split also years: trained on before 2013, validated until 2015, tested from 2016 on.

    The few images of no region are a domain in DomainBed and left out by WILDS' worst region, and so here.
    """
    table, countries, images = FMOW.find(root, f"FMoW{OFFICIAL if official else ''}")
    region_of = {code: region for code, region in _rows(countries, "alpha-3", "region") if region in REGIONS}
    numbers = {name: number for number, name in enumerate(FMOW_CLASSES)}
    listing = (
        Listing(FMOW_OFFICIAL, whole=FMOW_OFFICIAL[len(REGIONS) :]) if official else Listing((*REGIONS, NO_REGION))
    )
    for row, (split, category, code, time) in enumerate(_rows(table, "split", "category", "country_code", "timestamp")):
        if category not in numbers or not time[:4].isdecimal():
            raise UserError(f"{table}: row {row} has category {category[:40]!r} and time {time[:40]!r}: fetch it again")
        region, year = region_of.get(code, NO_REGION), int(time[:4])
        part = _part(split, year) if official else "" if split != "seq" else None
        if part is None:
            continue
        if official and region == NO_REGION:
            listing.left_out += 1
            continue
        held_out = official and not part and split == "val"
        listing.add(region + part, images / f"rgb_img_{row}.png", numbers[category], held_out=held_out)
    return listing


def _part(split: str, year: int) -> str | None:
    """The end of a domain's name by WILDS' split; None for images that it does not use here."""
    if year < 2013:
        return "" if split in ("train", "val") else None
    if year < 2016:
        return VALIDATION if split == "val" else None
    return TEST if split == "test" else None


FMOW_OFFICIAL = tuple(region + part for part in ("", VALIDATION, TEST) for region in REGIONS)
FMOW_TERMS = "FMoW Challenge Public License"
photo_dataset(
    "FMoW",
    "Satellite pictures of 62 kinds of buildings and land in five regions of the world, and elsewhere.",
    (*REGIONS, NO_REGION),
    FMOW_CLASSES,
    lambda root: _fmow(root, official=False),
    Source(f"{WILDS_PAGE}#fmow", FMOW_TERMS, 470_086, (FMOW,)),
    evaluate_every=100,
)
photo_dataset(
    f"FMoW{OFFICIAL}",
    "The same by WILDS' split: trained on until 2012, validated on 2013 to 2015, tested from 2016 on.",
    FMOW_OFFICIAL,
    FMOW_CLASSES,
    lambda root: _fmow(root, official=True),
    Source(f"{WILDS_PAGE}#fmow", FMOW_TERMS, 130_369, (FMOW,)),
    augmentation="none",
    validation=tuple(region + VALIDATION for region in REGIONS),
    unseen=tuple(region + TEST for region in REGIONS),
    selection="validation-domain",
)


# Waterbirds and CelebA: a domain is a place or a sex, so that a group is a class within a domain


def _parts(domains: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(domain + part for part in ("", VALIDATION, TEST) for domain in domains)


def _grouped(name: str, summary: str, domains: tuple[str, ...], classes: tuple[str, ...], **fields: object) -> None:
    """Registers a dataset with given training, validation and test parts of every domain."""
    photo_dataset(
        name,
        summary,
        _parts(domains),
        classes,
        validation=tuple(domain + VALIDATION for domain in domains),
        unseen=tuple(domain + TEST for domain in domains),
        held_out=0.0,
        selection="worst-subgroup",
        **fields,  # type: ignore[arg-type]
    )


PLACES = ("land", "water")
WATERBIRDS = Part(
    "Waterbirds",
    places=("waterbirds_v1.0", "waterbird_complete95_forest2water2", "waterbirds", "Waterbirds"),
    needs=(("metadata.csv",),),
    layout="metadata.csv and <kind of bird>/*.jpg",
    by_hand="download waterbird_complete95_forest2water2.tar.gz in a browser from "
    "https://nlp.stanford.edu/data/dro/waterbird_complete95_forest2water2.tar.gz",
    archives=(("waterbird_complete95_forest2water2.tar.gz", "waterbirds_v1.0"),),
)


def _waterbirds(root: Path) -> Listing:
    (table,) = WATERBIRDS.find(root, "Waterbirds")
    listing = Listing(_parts(PLACES))
    for file, y, split, place in _rows(table, "img_filename", "y", "split", "place"):
        domain = _parts(PLACES)[2 * _number(split, table, 3) + _number(place, table, 2)]
        listing.add(domain, _below(table, file), _number(y, table, 2))
    return listing


_grouped(
    "Waterbirds",
    "Birds of land or water, of which 95 % are trained on before a background of their own kind.",
    PLACES,
    ("landbird", "waterbird"),
    listing=_waterbirds,
    source=Source("https://arxiv.org/abs/1911.08731", "non-commercial research", 11_788, (WATERBIRDS,)),
)

SEXES = ("female", "male")
CELEBA = Part(
    "CelebA",
    places=("celebA_v1.0", "celebA", "celeba", "CelebA"),
    needs=(("list_attr_celeba.csv",), ("list_eval_partition.csv",), ("img_align_celeba",)),
    layout="list_attr_celeba.csv, list_eval_partition.csv and img_align_celeba/*.jpg",
    by_hand="download the aligned images and the two tables in a browser from "
    "https://www.kaggle.com/datasets/jessicali9530/celeba-dataset and put them into the folder celebA_v1.0 of the "
    "data root",
)


def _celeba(root: Path) -> Listing:
    """CelebA: is the hair blond?"""
    attributes, partition, images = CELEBA.find(root, "CelebA")
    split_of = {row[0]: row[1] for row in _rows(partition, "image_id", "partition")}
    if (images / images.name).is_dir():  # Kaggle's archive has the folder twice
        images = images / images.name
    listing = Listing(_parts(SEXES))
    for file, blond, male in _rows(attributes, "image_id", "Blond_Hair", "Male"):
        if file not in split_of:
            raise UserError(f"{partition} has no row for {file[:60]}: fetch it again")
        sex = int(male.strip() == "1")
        domain = _parts(SEXES)[2 * _number(split_of[file], partition, 3) + sex]
        listing.add(domain, _below(images / file, file), int(blond.strip() == "1"))
    return listing


_grouped(
    "CelebA",
    "Faces with blond hair or not; few of the men have it.",
    SEXES,
    ("not blond", "blond"),
    listing=_celeba,
    source=Source("https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html", "non-commercial research", 202_599, (CELEBA,)),
)


def _below(beside: Path, file: str) -> Path:
    """The file that a table names, in the folder of `beside`; a path that leads elsewhere is a UserError."""
    path = Path(file)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"{beside}: {file[:60]!r} leads elsewhere: fetch it again")
    return beside.parent / path
