"""Commands that train nothing import no torch, which alone takes seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

from domainwise.sweeps.plan import plan_sweep
from handmade_records import write_done_run

SCRIPT = """
import sys
from domainwise.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    status = stop.code
heavy = {name.partition(".")[0] for name in sys.modules} & {
    "torch", "torchvision", "triton", "ray", "sklearn", "matplotlib", "scipy"
}
sys.exit(f"imported {heavy}" if heavy else status)
"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sweep that has half ended."""
    folder = tmp_path_factory.mktemp("sweep")
    plan = plan_sweep("ColoredMNIST", ("ERM", "DAT"), draws=2, trials=1, steps=21, evaluate_every=20)
    plan.save(folder)
    for run in plan.runs()[:6]:
        write_done_run(folder, run, 0.5)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("status", "--json"),
        ("table",),
        ("table", "--selection", "all", "--format", "csv"),
        ("table", "--paper", "cmnist"),
    ],
    ids=" ".join,
)
def test_reading_a_sweep_imports_no_torch(sweep: Path, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", SCRIPT, arguments[0], str(sweep), *arguments[1:]]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "ERM" in result.stdout


@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("--help",), ("train", "--help")], ids=" ".join)
def test_lists_and_help_import_no_torch(arguments: tuple[str, ...]) -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "algorithm" in result.stdout


@pytest.mark.parametrize(
    "completion, name", [("algorithms", "ERM"), ("datasets", "ColoredMNIST"), ("networks", "resnet18")]
)
def test_completion_imports_no_torch(completion: str, name: str) -> None:
    script = (
        f"import sys; from domainwise.cli import complete; print(*complete.{completion}({name[:3]!r}), *sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    printed = set(result.stdout.split())
    assert name in printed, result.stderr
    assert not printed & {"torch", "matplotlib", "scipy"}


@pytest.mark.parametrize(
    "room", ["core.table", "sweeps.tables", "sweeps.leaderboard", "reports.paper_comparison", "reports.publish"]
)
def test_tables_import_only_what_they_need(room: str) -> None:
    heavy = {"torch", "matplotlib", "scipy", "jinja2", "pandas", "rich"}
    script = f"import sys, domainwise.{room}; print(*{heavy} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "\n"), result.stderr


def test_a_page_of_records_alone_imports_no_torch(sweep: Path, tmp_path: Path) -> None:
    script = "import sys, domainwise as dw; dw.report(*sys.argv[1:], models=False); print('torch' in sys.modules)"
    command = [sys.executable, "-c", script, str(sweep), str(tmp_path / "page.html")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.stdout == "False\n", result.stderr
