"""`make reproduce-NAME`: every command it would give is one, and every experiment is published and continued."""

import gzip
import json
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import typer.main

from commands import commands
from documents import ROOT
from domainwise.cli import app
from domainwise.cli.options import parse_hparams
from domainwise.data.catalogue import Dataset
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import erm_to_the_end, plan_run, search_space
from small_datasets import table

NAMES = re.findall(r"^EXPERIMENTS := (.*)$", (ROOT / "experiments.mk").read_text(), re.MULTILINE)[0].split()
"""Those that can be published and continued."""
TRAIN = ("sweep", "reproduce")
MORE_PLANNED = {"cmnist"}
"""Experiments with fewer draws in their records than in their plan."""


def recipe(target: str, *words: str) -> list[list[str]]:
    """The domainwise commands of a target, without running any."""
    command = ["make", "-n", "--no-print-directory", target, "DOMAINWISE=domainwise", *words]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    lines = done.stdout.replace("\\\n", " ").splitlines()
    return [shlex.split(line[line.index("domainwise") :])[1:] for line in lines if "domainwise" in line]


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_unpacks_trains_and_publishes(name: str) -> None:
    given = recipe(f"reproduce-{name}", "OPTIONS=--seed 7")
    assert given[0] == ["unpack", f"results/{name}", f"runs/{name}"]
    assert given[-1] == ["publish", f"runs/{name}", f"results/{name}"]
    trained = [words for words in given if words[0] in TRAIN]
    assert trained and all(words[words.index("--out") + 1] == f"runs/{name}" for words in trained)
    assert all(words[-2:] == ["--seed", "7"] for words in trained)
    program = typer.main.get_command(app)
    for words in given:
        program.make_context("domainwise", list(words))
        program.commands[words[0]].make_context(words[0], words[1:])  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_is_repeated_without_its_records(name: str) -> None:
    """With AGAIN nothing is unpacked or published, and ONLY leaves the lines of its methods as they are."""
    usual = [words for words in recipe(f"reproduce-{name}") if words[0] in TRAIN]
    again = recipe(f"reproduce-{name}", "AGAIN=1", "ONLY=DAT,ERM")
    assert not {"unpack", "publish"} & {words[0] for words in again}
    wanted = []
    for words in usual:
        at = words.index("--algorithms") + 1
        words[at] = ",".join(method for method in words[at].split(",") if method in ("DAT", "ERM"))
        words[words.index("--out") + 1] = f"runs/again/{name}"
        wanted += [words] if words[at] else []
    assert wanted and [words for words in again if words[0] in TRAIN] == wanted


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("pacs")])
def test_an_experiment_continues_what_is_published(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    domainwise = commands(capsys)
    if not (ROOT / "results" / name).is_dir():
        pytest.skip("not published yet")
    assert domainwise("unpack", ROOT / "results" / name, tmp_path / "runs").status == 0
    planned, missing = 0, 0
    for words in recipe(f"reproduce-{name}"):
        if words[0] in TRAIN:
            words[words.index("--out") + 1] = str(tmp_path / "runs")
            told = domainwise(*words, "--dry-run", "--json")
            assert told.status == 0, words
            found = json.loads(told.out)
            planned, missing = planned + found["runs"], missing + found["missing"]
        elif words[0] == "soup":
            made = domainwise("soup", tmp_path / "runs", *words[2:])
            assert made.status == 0 and "already" in made.out, made.err
    published = [Run.read(file) for file in (tmp_path / "runs").glob("*/run.json")]
    trained = [run for run in published if not run.combination]
    assert planned - missing == len(trained) and (missing > 0) == (name in MORE_PLANNED)


@pytest.mark.parametrize(
    ("target", "name"),
    [("reproduce-pacs", "pacs"), ("reproduce-pacs-search", "pacs-search"), ("heatmaps-pacs", "pacs-heatmaps")],
)
def test_what_is_published_of_pacs_is_what_was_planned(target: str, name: str) -> None:
    """The files that its weights come from are part of its runs, and not everywhere: so by what the plans say."""
    plans = [json.loads(file.read_text()) for file in (ROOT / "results" / name / "plans").glob("*.json")]
    with gzip.open(ROOT / "results" / name / "runs.jsonl.gz", "rt") as lines:
        runs = [json.loads(line)["run"] for line in lines]
    published = {(run["network"], str(run["steps"]), run["precision"]) for run in runs}
    for words in recipe(target):
        if words[0] == "sweep":
            given = dict(zip(words[1::2], words[2::2], strict=True))
            assert {(given["--network"], given["--steps"], given["--precision"])} == published
            assert any(
                plan["algorithms"] == given["--algorithms"].split(",")
                and (plan["draws"], plan["trials"]) == (int(given["--hparams"]), int(given["--trials"]))
                and plan["test_domains"] == given.get("--test-domains", "").split()
                and plan["space"] == "domainbed"
                for plan in plans
            ), words


def test_heatmaps_are_of_our_drawings_and_of_sketches() -> None:
    trained, on_drawings, on_sketches, published = recipe("heatmaps-pacs", "OPTIONS=--seed 7")
    assert (trained[0], trained[-2:], published[0]) == ("sweep", ["--seed", "7"], "publish")
    assert on_drawings.count("--images") == 7 and "--images" not in on_sketches
    program = typer.main.get_command(app)
    for words in (on_drawings, on_sketches):
        program.commands[words[0]].make_context(words[0], words[1 : words.index(">")])  # type: ignore[attr-defined]
        assert words[1] == trained[trained.index("--out") + 1] == published[1]


@pytest.mark.parametrize(("name", "more"), [("backgrounds-averages", ["--device", "cpu"]), ("pacs-averages", [])])
def test_soups_are_made_of_the_mild_draws_that_were_trained(name: str, more: list[str]) -> None:
    given = recipe(f"reproduce-{name}", "AGAIN=1", "ONLY=DAT,ERM")
    mild = [words for words in given if words[0] == "sweep"][-1]
    options = dict(pairwise(mild))  # of options given twice, the last value counts
    assert (options["--space"], options["--hparams"], options["--algorithms"]) == ("soup", "4", "ERM,DAT")
    soups = [["soup", options["--out"], "--algorithm", f"{method} (mild)", *more] for method in ("ERM", "DAT")]
    assert given[given.index(mild) + 1 :][:2] == soups


UNTRIED = {
    *("SD", "EQRM", "RDM", "IB_ERM", "IB_IRM", "Fishr", "Fish", "ANDMask", "SANDMask", "IGA", "SelfReg", "CAD"),
    *(
        "CondCAD",
        "CausIRL_CORAL",
        "CausIRL_MMD",
        "Transfer",
        "TRM",
        "URM",
        "ADRMX",
        "ERMPlusPlus",
        "MIRO",
        "SAGM",
        "SAM",
    ),
}
"""Methods without published runs on backgrounds."""


def test_every_method_is_tried_on_backgrounds() -> None:
    from domainwise.algorithms import ALGORITHMS

    sweeps = [words for words in recipe("reproduce-backgrounds") if words[0] == "sweep"]
    tried = [name for words in sweeps for name in words[words.index("--algorithms") + 1].split(",")]
    assert sorted(tried) == sorted(set(ALGORITHMS) - UNTRIED) and set(ALGORITHMS) > UNTRIED


@pytest.mark.parametrize("name", ["rotated-all", "cmnist-all"])
def test_every_method_is_tried_at_its_defaults(name: str) -> None:
    from domainwise.algorithms import ALGORITHMS

    sweeps = [words for words in recipe(f"reproduce-{name}") if words[0] == "sweep"]
    tried = [method for words in sweeps for method in words[words.index("--algorithms") + 1].split(",")]
    assert sorted(tried) == sorted(ALGORITHMS) and not any("--hparam" in words for words in sweeps)


def test_probes_are_of_every_method_that_does_more_than_change_features() -> None:
    """And none is ERM to the end of its runs."""
    from domainwise.algorithms import ALGORITHMS

    sweeps = [words for words in recipe("reproduce-pacs-probes") if words[0] == "sweep"]
    tried = [(name, words) for words in sweeps for name in words[words.index("--algorithms") + 1].split(",")]
    assert sorted(name for name, _ in tried) == sorted(n for n, one in ALGORITHMS.items() if not one.moves_features)
    vectors = Dataset.from_environments(table())
    for name, words in tried:
        fixed = parse_hparams([after for word, after in pairwise(words) if word == "--hparam"])
        assert not list(erm_to_the_end([plan_run(vectors, name, [0], network="linear", hparams=fixed)])), name
        assert words[words.index("--network") + 1] == "linear"


@pytest.mark.parametrize("name", NAMES)
def test_every_hyper_parameter_is_one_of_a_method_it_is_given_to(name: str) -> None:
    for words in recipe(f"reproduce-{name}"):
        if words[0] != "sweep":
            continue
        given = {after.split("=")[0] for word, after in pairwise(words) if word in ("--hparam", "--grid")}
        algorithms = words[words.index("--algorithms") + 1].split(",")
        assert given <= {key for algorithm in algorithms for key in search_space(algorithm, "small")}
