"""Every code block of the documentation is executed, page by page, in an empty folder with small data.

Commands run as written, with fewer steps, draws and trials appended (a repeated option takes its last value); fits in
Python take fewer steps, too. A command that ends in & runs until the page ends, and its port is one that is free.
Commands that install are not run: `make` prints its recipe, and pip's folder is checked.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from commands_page import commands_page
from documents import BLOCK, PAGES, ROOT, blocks
from domainwise.cli import demo, main
from domainwise.data.catalogue import DATASETS
from domainwise.models import fit
from domainwise.models.folder import load_model
from domainwise.protocol.runs import Run
from domainwise.reports.page.write import write_page
from domainwise.sweeps.plan_run import plan_run
from small_datasets import make_folder, picture, small_data_root

SLOW = ("performance",)
"""Pages with benchmarks: their blocks take more than ten seconds."""
SHOWN_ONLY = ("toml", "bibtex", "text")
"""Kinds that nobody executes."""
SMALLER = {
    "demo": "--steps 2 --trials 1",
    "train": "--steps 3 --hparam batch_size=4 --device cpu",
    "sweep": "--steps 3 --hparams 1 --trials 1 --hparam batch_size=4 --device cpu --workers 2",
    "reproduce": "--steps 3 --hparams 1 --trials 1 --device cpu --network mlp",
    "compare": "--steps 3 --hparams 1 --trials 1 --hparam batch_size=4 --device cpu",
    "shift": "--images 300 --device cpu",
    "bench": "--batch-size 2 --seconds 0 --precisions fp32 --algorithms ERM --device cpu",
    "report": "--no-models",
}
DEMOS: list[Path] = []
"""The folder of the demo, which several pages begin with, once a page has run it."""


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell block, a comment or a continued line's backslash taken away."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def background(words: list[str], port: int) -> Iterator[None]:
    """A server of ours, ready to answer, within the context; it must end well when it is asked to."""
    command = [sys.executable, "-m", *words, "--port", str(port), "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            until = time.monotonic() + 120
            while True:
                assert server.poll() is None and time.monotonic() < until, " ".join(words)
                with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as reply:
                    assert reply.status == 200
                    break
                time.sleep(0.1)
            yield
            server.terminate()
            assert server.wait(60) == 0
        finally:
            server.kill()


def run_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line of a shell block: our own command in this process, anything else in one of its own."""
    settings = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        settings[name] = value
    target = None
    if ">" in words:
        words, target = words[: words.index(">")], words[-1]
    if words == ["make", "demo"]:
        words = ["domainwise", "demo"]
    if words[0] == "make":
        words = ["make", "--directory", str(ROOT), "--dry-run", *words[1:]]
    if words[:2] == ["pip", "install"]:
        assert words[2:] == ["."] and (ROOT / "pyproject.toml").exists()
        return
    if words[0] == "torchrun":
        words[words.index("--nproc-per-node") + 1] = "2"
        smaller = shlex.split(f"{SMALLER['train']} --network mnist-cnn --image-size 28")
        words = [sys.executable, "-m", "torch.distributed.run", *words[1:], *smaller]
    if words[0] == "curl":
        words.insert(1, "--fail")
    if words[0] != "domainwise":
        subprocess.run(words, check=True, timeout=300)
        return
    if words == ["domainwise", "demo"] and DEMOS:
        shutil.copytree(DEMOS[0], "runs/demo")
        return
    arguments = words[1:]
    name = next((word for word in arguments if word in SMALLER), "")
    arguments = [word for word in arguments if word != "--watch"] + shlex.split(SMALLER.get(name, ""))
    if "--image-size" in arguments:
        arguments += ["--image-size", "32"]
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        main(arguments)
    except SystemExit as stop:
        assert not stop.code, f"{' '.join(words)}: exit status {stop.code}"
    finally:
        os.environ.clear()
        os.environ.update(before)
    if target:
        Path(target).write_text(capsys.readouterr().out)
    if words == ["domainwise", "demo"]:
        DEMOS.append(Path("runs/demo").absolute())


@pytest.fixture
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dw.fit` takes a few steps with small batches, whatever a page asks for."""

    def plan(*arguments: Any) -> Run:
        run = plan_run(*arguments)
        return replace(run, steps=min(run.steps, 11), evaluate_every=10, hparams={**run.hparams, "batch_size": 8})

    monkeypatch.setattr(fit, "plan_run", plan)


@pytest.mark.usefixtures("nothing_stays_registered", "quick_workers", "short_fits")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in SLOW else []) for page in PAGES],
)
def test_every_block_runs(
    page: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    todo = [block for block in blocks(page) if block.kind not in SHOWN_ONLY]
    assert {block.kind for block in todo} <= {"python", "bash"}, "say of another kind that it is shown only"
    if not todo:
        pytest.skip("no block to run on this page")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOMAINWISE_DATA", str(small_data_root(tmp_path_factory.mktemp("data"))))
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / ".cache"))
    monkeypatch.setattr(demo, "write_report", lambda out, _device: write_page(out)[0])  # its models take long
    monkeypatch.setitem(DATASETS._things, "PACS", replace(DATASETS["PACS"], shape=(3, 32, 32)))
    for name, seed in (("photos", 0), ("labelled_photos", 1000)):
        make_folder(tmp_path / name, count=8, seed=seed)
    make_folder(tmp_path / "new_camera", ["."], ["."], count=30, suffix=".jpg")
    namespace: dict[str, object] = {"__name__": "docs"}
    port = free_port()
    with ExitStack() as servers:
        for block in todo:
            text = block.text.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
            if block.kind == "python":
                exec(compile(text, f"{page.name}", "exec"), namespace)
                continue
            for words in commands(text):
                capsys.readouterr()
                if words[-1] == "&":
                    servers.enter_context(background(words[:-1], port))
                else:
                    run_command(words, capsys)


MADE_BY_THE_TUTORIAL = ["domainwise", "data", "manifest", "photos"]
"""How the command begins that makes the table; here there is one already."""


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A camera trap's table: bursts, foxes rare, a missing and a damaged file, copies in a burst and across cameras."""
    lines = ["path,label,camera,taken"]
    for number in range(108):
        camera, burst = ("river", "street", "forest")[number // 36], number // 3
        species = "fox" if burst % 6 == 5 else "deer"
        file = tmp_path / "images" / f"{number:03d}.png"
        file.parent.mkdir(exist_ok=True)
        picture(number).save(file)
        lines.append(
            f"images/{file.name},{species},{camera},2026-05-{burst % 12 + 1:02d} 06:00:{10 * (number % 3):02d}"
        )
        (tmp_path / "labelled_photos" / camera / species).mkdir(parents=True, exist_ok=True)
        if number % 2:
            picture(1000 + number).save(tmp_path / "labelled_photos" / camera / species / file.name)
    shutil.copy(tmp_path / "images/003.png", tmp_path / "images/004.png")
    shutil.copy(tmp_path / "images/000.png", tmp_path / "images/040.png")
    (tmp_path / "images/050.png").unlink()
    (tmp_path / "images/060.png").write_bytes(b"no image")
    (tmp_path / "traps.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.usefixtures("quick_workers")
def test_the_tutorial_on_tables_takes_a_camera_trap_with_faults_from_check_to_server(
    traps: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands verbatim, after the table is made; the check names what is wrong with it."""
    make_folder(traps / "new_camera", ["."], ["."], count=30, suffix=".jpg")
    monkeypatch.chdir(traps)
    monkeypatch.setenv("DOMAINWISE_DATA", str(traps / "root"))
    monkeypatch.setenv("DOMAINWISE_CACHE", str(traps / ".cache"))
    port, ran = free_port(), []
    shell = "".join(one.text for one in blocks(ROOT / "docs" / "tutorial-tables.md") if one.kind == "bash")
    with ExitStack() as servers:
        for words in commands(shell.replace("127.0.0.1:8000", f"127.0.0.1:{port}")):
            capsys.readouterr()
            ran.append(words[1])
            if words[1:3] == ["data", "check"]:
                with pytest.raises(SystemExit) as stop:
                    main([*words[1:], "--json"])
                told = json.loads(capsys.readouterr().out)
                assert stop.value.code == 2 and len(told["problems"]) == 2 and "050.png" in str(told["problems"])
                assert len(told["duplicates"]) == 2, "of a burst, and of two cameras"
                (copy,) = [line for line in told["warnings"] if "several" in line]  # that within a burst cannot leak
                assert copy.startswith("1 image in several domains: an unseen domain whose images are trained on")
                assert "000.png" in copy and "040.png" in copy
            elif words[-1] == "&":
                servers.enter_context(background(words[:-1], port))
            elif words[:4] != MADE_BY_THE_TUTORIAL:
                run_command(words, capsys)
    assert {"train", "compare", "predict", "evaluate", "serve"} <= set(ran)
    model = load_model(Path("model"))
    assert model.classes == ("deer", "fox") and model.card.calibration is not None
    assert model.card.training["run"]["balance"] == "class" and "bursts=30s" in model.card.training["run"]["dataset"]
    counts = model.card.training["counts"]
    assert set(counts) == {"forest", "river", "street"} and all(0 < c["fox"] < c["deer"] for c in counts.values())


def test_the_python_of_the_tutorial_on_tables_reads_the_same_faults(
    traps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(traps)
    monkeypatch.setenv("DOMAINWISE_CACHE", str(traps / ".cache"))
    last = [one for one in blocks(ROOT / "docs" / "tutorial-tables.md") if one.kind == "python"][-1]
    names: dict[str, Any] = {}
    exec(compile(last.text, "tutorial-tables.md", "exec"), names)
    listed = len((traps / "traps.csv").read_text().splitlines()) - 1
    assert len(names["data"].images) == listed - 2 and (traps / "model" / "model.json").is_file()


def test_no_code_hides_in_indented_blocks() -> None:
    for page in PAGES:
        hidden = re.findall(r"\n\n(?: {4}|\t).*", BLOCK.sub("", page.read_text(encoding="utf-8")))
        assert not hidden, f"{page.name}: fence {hidden[0]!r}"


def test_the_page_of_commands_is_up_to_date() -> None:
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == commands_page(), "run: make docs"
