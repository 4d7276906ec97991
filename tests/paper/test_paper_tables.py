"""The paper's accuracies: each table against its own averages, tables against each other, and look-up."""

from statistics import fmean

import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.data.sources.mnist import COLOUR_FLIPS
from domainwise.paper.tables import SINGLE_SOURCE, TABLES, PaperTable, Published, find_table

EVERYTHING = [cell for table in TABLES for cell in table.published]
CELLS = {
    "bench": 18 * 4,
    "mixed": 2,
    "single": 2 * 4,
    "dig": 2 * 5,
    "euat": 3 * 2,
    "EpsandAlpha": 9,
    "cmnist": 2 * 3 * 4,
    "pacs": 2 * 3 * 5,
    "terrain": 2 * 3 * 5,
    "db": 15 * 7,
    "inf": 3,
    "cmnistes": 9,
    "cmnistds": 9,
    "nicoes": 3,
    "nicods": 3,
    "pacses": 16,
    "pacsds": 16,
    "terraes": 16,
    "terrads": 16,
}
NUMBERS = ["1", "", "2", "3", "4", "5", "9", "10", "11", "12", "13", *["15"] * 8]
DOMAINS = {
    "ColoredMNIST": set(COLOUR_FLIPS),
    "PACS": {"art_painting", "cartoon", "photo", "sketch"},
    "TerraIncognita": {"L100", "L38", "L43", "L46"},
    "NICO": {"test"},
    "Digits": {"SVHN", "MNIST-M", "SYN", "USPS"},
    "MixedSame": {"Mixed-Rand"},
    "RotatedMNIST": set(),
    "VLCS": set(),
    "OfficeHome": set(),
    "average over datasets": set(),
}
TRAINING_DOMAINS = {"NICO": {"train1", "train2"}, "Digits": {"MNIST"}, "MixedSame": {"Mixed-Same"}}


def cell(table: str, dataset: str, algorithm: str, domain: str = "average", **facts: object) -> Published:
    """The one cell of a table that fits."""
    facts |= {"dataset": dataset, "algorithm": algorithm, "domain": domain}
    (found,) = [c for c in find_table(table).published if all(getattr(c, key) == facts[key] for key in facts)]
    return found


def averages(table: PaperTable) -> list[tuple[Published, float]]:
    """Every printed average whose parts stand in the same table, and what they give."""
    found = []
    for c in table.published:
        if c.dataset == "average over datasets":
            parts = [p for p in table.published if p.algorithm == c.algorithm and p is not c]
        elif c.domain == "average":
            parts = [p for p in table.published if p.domain != "average" and row(p) == row(c)]
        elif c.dataset == "NICO" and c.setting == "single" and c.train is None:
            parts = [p for p in table.published if p.train and p.algorithm == c.algorithm]
        else:
            parts = []
        found += [(c, fmean(p.mean for p in parts))] if parts else []
    return found


def row(c: Published) -> tuple[str | None, ...]:
    return c.dataset, c.algorithm, c.selection, c.setting, c.train


# one table alone


@pytest.mark.parametrize(
    ("label", "printed"),
    [
        ("dig", 2),
        ("cmnist", 6),
        ("pacs", 6),
        ("terrain", 6),
        ("db", 15),
        ("cmnistes", 3),
        ("cmnistds", 3),
        ("nicoes", 1),
        ("nicods", 1),
        ("pacses", 4),
        ("pacsds", 4),
        ("terraes", 4),
        ("terrads", 4),
    ],
)
def test_averages_follow_from_the_domains(label: str, printed: int) -> None:
    found = averages(find_table(label))
    assert len(found) == printed, "no average is left out"
    for average, expected in found:
        assert average.mean == pytest.approx(expected, abs=0.15), average


def test_only_one_average_is_more_than_rounding_away() -> None:
    """Parts rounded to 0.05 and an average rounded to 0.05 differ by 0.1 at most."""
    off = [(c, mean) for table in TABLES for c, mean in averages(table) if abs(c.mean - mean) > 0.1]
    ((average, expected),) = off
    assert average == cell("terraes", "TerraIncognita", "ERM", train="L46")
    assert average.mean == 28.3 and expected == pytest.approx(28.17, abs=0.005)
    assert "28.17" in average.note and average.note in find_table("terraes").notes


def test_counts() -> None:
    assert {table.label: len(table.published) for table in TABLES} == CELLS
    assert [table.number for table in TABLES] == NUMBERS and len(EVERYTHING) == 387
    assert len(SINGLE_SOURCE.published) == sum(list(CELLS.values())[-8:]) == 88


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.label)
def test_cells_are_sane(table: PaperTable) -> None:
    where = [(c.dataset, c.algorithm, c.domain, c.selection, c.setting, c.train, c.variant) for c in table.published]
    assert len(set(where)) == len(where), "no cell stands twice"
    for c in table.published:
        assert c.algorithm in ALGORITHMS
        assert c.selection in {"training-domain", "oracle", "validation-domain", "last"}
        assert (c.selection == "last") == (c.dataset == "Digits")
        assert (c.selection == "validation-domain") == (c.dataset == "NICO")
        assert c.setting in {"multi", "single"}
        assert c.domain in DOMAINS[c.dataset] | {"average"}
        assert c.train is None or c.train in TRAINING_DOMAINS.get(c.dataset, DOMAINS[c.dataset])
        assert c.train is None or c.setting == "single"
        assert c.train != c.domain
        assert 0 < c.mean < 100 and (c.error is None or 0 <= c.error < 10)
        assert not c.note or c.note in table.notes
        assert bool(c.variant) == (table.label in {"EpsandAlpha", "inf"})


def test_grids_are_complete() -> None:
    for label in ("cmnist", "pacs", "terrain"):
        for rule in ("training-domain", "oracle"):
            for algorithm in ("ERM", "UAT", "DAT"):
                cells = [c for c in find_table(label).published if (c.selection, c.algorithm) == (rule, algorithm)]
                assert {c.domain for c in cells} == DOMAINS[cells[0].dataset] | {"average"}
    for label in list(CELLS)[-8:]:
        (dataset,) = {c.dataset for c in find_table(label).published}
        pairs = {(c.train, c.domain) for c in find_table(label).published}
        trains = TRAINING_DOMAINS.get(dataset, DOMAINS[dataset])
        expected = {(train, domain) for train in trains for domain in DOMAINS[dataset] if train != domain}
        assert pairs == expected | ({(None, "test")} if dataset == "NICO" else {(train, "average") for train in trains})


# tables against each other

ADOPTED = "Table 1 adopts ERM from OoD-Bench, the appendix has the paper's own runs"
APART = {
    ("PACS", "ERM"): (81.5, 80.6, ADOPTED),
    ("TerraIncognita", "ERM"): (42.6, 42.2, ADOPTED),
}


@pytest.mark.parametrize("algorithm", ["ERM", "UAT", "DAT"])
@pytest.mark.parametrize(
    ("label", "dataset"), [("cmnist", "ColoredMNIST"), ("pacs", "PACS"), ("terrain", "TerraIncognita")]
)
def test_table_1_follows_from_the_appendix(label: str, dataset: str, algorithm: str) -> None:
    ours = cell("bench", dataset, algorithm)
    split = cell(label, dataset, algorithm, selection=ours.selection)
    if (dataset, algorithm) in APART:
        first, second, reason = APART[dataset, algorithm]
        assert (ours.mean, split.mean) == (first, second), reason
    else:
        assert ours.mean == pytest.approx(split.mean, abs=0.15)
        assert ours.error == split.error or (dataset, algorithm) == ("TerraIncognita", "UAT")


@pytest.mark.parametrize("algorithm", ["ERM", "DAT"])
@pytest.mark.parametrize("dataset", ["ColoredMNIST", "NICO", "PACS", "TerraIncognita"])
def test_table_2_follows_from_table_15(dataset: str, algorithm: str) -> None:
    average = cell("single", dataset, algorithm, "test" if dataset == "NICO" else "average")
    cells = [c for c in SINGLE_SOURCE.published if (c.dataset, c.algorithm) == (dataset, algorithm)]
    assert {c.selection for c in cells} == {average.selection} and {c.setting for c in cells} == {average.setting}
    pairs = [c.mean for c in cells if c.domain != "average" and c.train]
    assert average.mean == pytest.approx(fmean(pairs), abs=0.15)


def test_tables_4_and_5_repeat_table_1() -> None:
    for dataset, domain in (("ColoredMNIST", "average"), ("NICO", "test")):
        for algorithm in ("UAT", "DAT"):
            assert cell("euat", dataset, algorithm, domain) == cell("bench", dataset, algorithm, domain)
    ablation, bench = find_table("5").published[0], cell("bench", "NICO", "DAT", "test")
    assert (ablation.mean, ablation.error) == (bench.mean, bench.error)


def test_tables_9_and_12_agree_but_for_erm() -> None:
    """Both are DomainBed's ColoredMNIST by training-domain validation; ERM is adopted from two of its releases."""
    assert cell("db", "ColoredMNIST", "DAT") == cell("cmnist", "ColoredMNIST", "DAT", selection="training-domain")
    repository = cell("db", "ColoredMNIST", "ERM")
    paper = cell("cmnist", "ColoredMNIST", "ERM", selection="training-domain")
    assert (repository.mean, paper.mean) == (51.5, 52.0)


# slips


def test_pacs_captions_are_swapped_back() -> None:
    assert cell("pacs", "PACS", "DAT", selection="training-domain").mean == 82.0
    assert cell("pacs", "PACS", "DAT", selection="oracle").mean == 81.7
    assert "swapped" in find_table("pacs").notes[0]


def test_slips_stand_beside_their_numbers() -> None:
    first, second = cell("bench", "TerraIncognita", "UAT"), cell("terrain", "TerraIncognita", "UAT", error=1.2)
    assert (first.mean, first.error, second.mean) == (41.9, 1.8, 41.8)
    assert first.note == second.note and "41.8 ± 1.2" in first.note
    assert "72.9" in find_table("5").published[0].note
    assert len([c for c in EVERYTHING if c.note]) == 5


# printed values


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("1", Published("ColoredMNIST", "IRM", "average", 70.2, 0.2, "oracle")),
        ("1", Published("NICO", "RSC", "test", 74.3, 1.9, "validation-domain")),
        ("1", Published("PACS", "WRM", "average", 80.4, 0.0, "training-domain")),
        ("1", Published("TerraIncognita", "MLDG", "average", 27.3, 2.0, "training-domain")),
        ("2", Published("NICO", "DAT", "test", 64.4, 0.7, "validation-domain", "single")),
        ("3", Published("Digits", "ERM", "SVHN", 27.83, None, "last", "single", "MNIST")),
        ("3", Published("Digits", "DAT", "MNIST-M", 55.8, 1.4, "last", "single", "MNIST")),
        ("4", Published("NICO", "EnsembleUAT", "test", 60.8, 0.2, "validation-domain")),
        ("9", Published("ColoredMNIST", "DAT", "-90%", 47.5, 2.6, "oracle")),
        ("10", Published("PACS", "ERM", "photo", 94.7, 0.5, "training-domain")),
        ("11", Published("TerraIncognita", "DAT", "L43", 52.7, 0.8, "oracle")),
        ("12", Published("OfficeHome", "CORAL", "average", 68.7, 0.3, "training-domain")),
        ("12", Published("average over datasets", "DAT", "average", 71.2, None, "training-domain")),
        ("15", Published("TerraIncognita", "DAT", "L46", 32.9, 1.5, "training-domain", "single", "L43")),
        ("15", Published("NICO", "ERM", "test", 69.6, 2.0, "validation-domain", "single", "train2")),
        ("15", Published("ColoredMNIST", "ERM", "+90%", 88.7, 0.4, "oracle", "single", "+80%")),
        ("mixed", Published("MixedSame", "ERM", "Mixed-Rand", 71.9, None, "training-domain", "single", "Mixed-Same")),
        ("mixed", Published("MixedSame", "DAT", "Mixed-Rand", 72.6, None, "training-domain", "single", "Mixed-Same")),
    ],
)
def test_printed_values(table: str, expected: Published) -> None:
    assert expected in find_table(table).published


def test_ablation_cells() -> None:
    l2 = {c.variant: (c.mean, c.error) for c in find_table("EpsandAlpha").published}
    linf = {c.variant: (c.mean, c.error) for c in find_table("inf").published}
    assert l2["l2, eps 1e-2..1e-1, alpha 1e-4..1e-3"] == (72.6, 1.7)
    assert l2["l2, eps 1e0..1e1, alpha 1e-2..1e-1"] == (67.9, 2.0)
    assert linf["linf, eps 1e-1..1e0, alpha 1e-3..1e-2"] == (72.5, 1.6)


# look-up


@pytest.mark.parametrize("name", ["1", "table1", "Table 1", "TABLE 1", " bench ", "Bench", "table:bench", "tab:bench"])
def test_one_table_by_many_names(name: str) -> None:
    assert find_table(name) is TABLES[0]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.label)
def test_every_table_by_label_and_number(table: PaperTable) -> None:
    assert find_table(table.label) is table and find_table(f"tab:{table.label.lower()}") is table
    if table.number not in {"", "15"}:
        assert find_table(table.number) is table


def test_sub_tables() -> None:
    assert find_table("15") is find_table("Table 15") is find_table("singlesource") is SINGLE_SOURCE
    assert find_table("15a").label == "cmnistes" and find_table("Table 15h").label == "terrads"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("bnch", "did you mean 'bench'?"),
        ("tabel 2", "did you mean 'table2'?"),
        ("terraed", "did you mean 'terra"),
        ("epsalpha", "did you mean 'EpsandAlpha'?"),
        ("zzzz", "known: "),
        ("", "known: "),
        ("table", "did you mean 'tab"),
    ],
)
def test_unknown_names(name: str, hint: str) -> None:
    with pytest.raises(UserError, match="unknown table of the paper") as error:
        find_table(name)
    assert hint in str(error.value) and "\n" not in str(error.value)
