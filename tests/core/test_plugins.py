"""A user's own parts: from a file or an installed package, by name everywhere, in every process."""

import json
import os
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from commands import commands
from domainwise.algorithms import ALGORITHMS
from domainwise.core import plugins
from domainwise.sweeps.commands import sweep_command, train_command
from domainwise.sweeps.plan import plan_sweep

QUICK = ("--steps", "3", "--hparam", "batch_size=4", "--device", "cpu")


def domainwise(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own: what a plugin registers stays there."""
    clean = {name: value for name, value in os.environ.items() if name != plugins.VARIABLE}
    return subprocess.run(
        [sys.executable, "-m", "domainwise", *arguments],
        cwd=folder,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def template(folder: Path, kind: str) -> Path:
    path = folder / f"my {kind}.py"
    path.write_text(resources.files("domainwise.cli.templates").joinpath(f"{kind}.py").read_text())
    return path


@pytest.mark.parametrize(
    ("kind", "uses"),
    [
        ("algorithm", ("--dataset", "BackgroundDigits", "--algorithm", "WorstDomain", "--test-domain", "scene1")),
        ("network", ("--dataset", "BackgroundDigits", "--network", "two-layers", "--test-domain", "scene1")),
        ("dataset", ("--dataset", "Bars", "--algorithm", "DAT", "--test-domain", "dark")),
    ],
)
@pytest.mark.usefixtures("nothing_stays_registered")
def test_every_template_runs_as_it_is(
    kind: str,
    uses: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run = commands(capsys)
    (tmp_path / "mine.py").write_text(run("template", kind).out)
    result = run("--plugin", "mine.py", "train", *uses, *QUICK, "--json")
    assert result.status == 0, result.err
    assert json.loads(result.out)["status"] == "done"


@pytest.mark.usefixtures("nothing_stays_registered")
def test_worker_processes_know_the_plugin_and_the_list_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = template(tmp_path, "algorithm")
    settings = ("--dataset", "BackgroundDigits", "--test-domains", "scene1", "--hparams", "1", "--trials", "1", *QUICK)
    out = tmp_path / "out"
    made = ("sweep", "--algorithms", "WorstDomain", *settings, "--json", "--out", str(out))
    result = domainwise(tmp_path, *made, DOMAINWISE_PLUGINS=str(file))
    assert result.returncode == 0, result.stderr
    assert "WorstDomain" in result.stdout
    run = commands(capsys)
    for command in ("status", "report"):
        forgotten = run(command, out)
        assert forgotten.is_one_line_error, "told, not imported"
        assert f"load them here too: {file} (--plugin)" in forgotten.err
    assert json.loads(run("--plugin", file, "status", out, "--json").out)["done"] == 1
    listed = json.loads(run("--plugin", file, "list", "--json").out)
    assert listed["algorithms"]["WorstDomain"].startswith("Mind the worst")


def test_commands_to_type_again_name_the_plugins_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.VARIABLE, "/mine/my algorithm.py")
    plan = plan_sweep("BackgroundDigits", ("ERM",), draws=1, trials=1)
    for command in (sweep_command(plan, Path("out")), train_command(plan.runs()[0], Path("out"))):
        assert command is not None and shlex.split(command)[:3] == ["domainwise", "--plugin", "/mine/my algorithm.py"]


def test_a_cluster_task_imports_the_plugins_it_was_sent_with(tmp_path: Path) -> None:
    """What Ray and Slurm call, in a process whose environment does not name the plugin."""
    file = template(tmp_path, "dataset")
    script = (
        "import sys; from pathlib import Path; import domainwise as dw; from domainwise.core import plugins\n"
        "from domainwise.sweeps.cluster import train_task; from domainwise.sweeps.events import Settings\n"
        "run = dw.Run(dataset='Bars', algorithm='ERM', train_domains=('middle', 'bright'), test_domains=('dark',),\n"
        "    hparams={'lr': 1e-3, 'weight_decay': 0.0, 'batch_size': 4, 'dropout': 0.0}, network='small-cnn',\n"
        "    steps=2, evaluate_every=1, image_size=16)\n"
        "train_task(run, Settings(Path('out'), 'cpu', plugins=(sys.argv[1],)))\n"
        "print(next(Path('out').glob('*/records.jsonl')).read_text())\n"
    )
    clean = {name: value for name, value in os.environ.items() if name != plugins.VARIABLE}
    command = [sys.executable, "-c", script, str(file)]
    result = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120)
    assert '"status": "done"' in result.stdout, result.stdout + result.stderr


def test_an_installed_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(template(tmp_path, "dataset").read_text())
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[domainwise.plugins]\nbars = mine\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = domainwise(tmp_path, "list", "--json", PYTHONPATH=path)
    assert "Bars" in json.loads(result.stdout)["datasets"], result.stderr


def test_installed_packages_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of a thousand runs of a method that is not known here asks a thousand times."""
    searches = []
    monkeypatch.setattr(plugins, "entry_points", lambda group: searches.append(group) or ())
    plugins.installed.cache_clear()
    assert not any(f"nobody-{number}" in ALGORITHMS for number in range(3)) and searches == [plugins.GROUP]
    plugins.installed.cache_clear()


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("absent.py", None, "absent.py is not a file"),
        ("words.txt", "hello", "words.txt is not a Python file"),
        ("broken.py", "x = 1\ny = x / 0\n", "broken.py failed at line 2: ZeroDivisionError"),
        ("wrong.py", "def (:\n", "wrong.py failed at line 1: SyntaxError"),
        (
            "taken.py",
            "import domainwise as dw\n@dw.algorithm\nclass ERM(dw.Algorithm):\n    pass\n",
            "algorithm 'ERM' is registered twice",
        ),
    ],
)
@pytest.mark.usefixtures("nothing_stays_registered")
def test_a_plugin_that_cannot_be_used_is_one_line(
    name: str, text: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    result = commands(capsys)("--plugin", tmp_path / name, "list")
    assert result.is_one_line_error and complaint in result.err


def test_help_does_not_wait_for_torch(tmp_path: Path) -> None:
    script = (
        "import sys, domainwise.cli\n"
        "try: domainwise.cli.main(['--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip().endswith("False"), result.stderr
