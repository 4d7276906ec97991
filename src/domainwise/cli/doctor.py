"""`domainwise doctor`."""

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape
from rich.table import Table

from domainwise.cli import options
from domainwise.cli.output import console, print_json
from domainwise.core import plugins
from domainwise.core.errors import UserError
from domainwise.core.threads import cores
from domainwise.nets import hub

if TYPE_CHECKING:
    import torch

EXAMPLES = "Examples:  [bold]domainwise doctor[/]   ·   [bold]domainwise doctor --json --data-root ~/data[/]"
SIGNS = {True: "[green]✓[/]", None: "[dim]–[/]", False: "[red]✗[/]"}
OPTIONAL = {
    "ray": ("sweeps on a Ray cluster", "domainwise[ray]"),
    "submitit": ("sweeps on Slurm", "domainwise[slurm]"),
    "transformers": ("networks hf:NAME", "domainwise[hf]"),
    "timm": ("networks timm:NAME", "domainwise[timm]"),
    "onnx": ("export to ONNX", "domainwise[onnx]"),
    "onnxruntime": ("checking an exported ONNX file", "domainwise[onnx]"),
    "fastapi": ("serving a model", "domainwise[serve]"),
    "uvicorn": ("serving a model", "domainwise[serve]"),
    "triton": ("fused kernels on a GPU", "triton"),
    "tensorboard": ("curves in TensorBoard", "tensorboard"),
    "wandb": ("curves in Weights & Biases", "wandb"),
    "mlflow": ("curves in MLflow", "mlflow"),
}
"""Package -> (what it is for, what to install)."""
IMPORTS = {"transformers": hub.import_transformers, "timm": hub.import_timm}
"""Packages that may be installed and still fail: with a torchvision that does not fit torch."""
LITTLE_SPACE = 2 * 2**30


def doctor(data_root: options.DataRoot = None, as_json: options.Json = False) -> None:
    """Show what is installed: versions, devices, precisions, optional packages, data, weights, plugins, disk space.

    A dash marks an optional part that is missing, a cross a part that does not work (exit status 1).
    """
    findings = list(examine(data_root))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        part = ""
        for finding in findings:
            table.add_row(
                f"[bold]{finding.part}[/]" if finding.part != part else "",
                SIGNS[finding.good],
                escape(finding.name),
                escape(finding.words),
            )
            part = finding.part
        console.print(table)
    if any(finding.good is False for finding in findings):
        raise typer.Exit(1)


@dataclass(frozen=True)
class Finding:
    """The state of one part. `good` is False if it does not work, None if it is merely absent."""

    part: str
    name: str
    good: bool | None
    words: str


def examine(root: Path | None = None) -> Iterator[Finding]:
    """All findings, in the order in which a training would depend on them."""
    yield from versions()
    yield from devices()
    yield from packages()
    yield from loaded_plugins()
    yield from data(root)


def versions() -> Iterator[Finding]:
    import domainwise

    yield Finding("versions", "domainwise", True, domainwise.__version__)
    yield Finding(
        "versions", "Python", True, f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    for package in ("torch", "numpy", "safetensors"):
        yield Finding("versions", package, True, metadata.version(package))


def devices() -> Iterator[Finding]:
    import torch

    words = f"{cores()} cores, {torch.get_num_threads()} threads; {_precisions(torch.device('cpu'))}"
    yield Finding("devices", "cpu", True, words)
    if not torch.cuda.is_available():
        yield Finding("devices", "cuda", None, "no CUDA device: everything runs on the CPU")
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        memory = f"{facts.total_memory / 2**30:.0f} GiB"
        yield Finding(
            "devices", f"cuda:{number}", True, f"{facts.name}, {memory}; {_precisions(torch.device('cuda', number))}"
        )


def _precisions(device: "torch.device") -> str:
    from domainwise.engine.devices import check_precision
    from domainwise.protocol.runs import PRECISIONS

    able = []
    for precision in PRECISIONS:
        try:
            check_precision(precision, device)
        except UserError:
            continue
        able.append(precision)
    return f"precisions {', '.join(able)}"


def packages() -> Iterator[Finding]:
    for package, (use, install) in OPTIONAL.items():
        try:
            version = metadata.version(package)
            IMPORTS.get(package, bool)()
            yield Finding("packages", package, True, f"{version}: {use}")
        except metadata.PackageNotFoundError:
            yield Finding("packages", package, None, f"not installed; for {use}: pip install '{install}'")
        except UserError as error:
            yield Finding("packages", package, False, str(error))


def loaded_plugins() -> Iterator[Finding]:
    """Plugins, each imported."""
    try:
        plugins.load()
    except UserError as error:
        yield Finding("plugins", plugins.VARIABLE, False, str(error))
        return
    named = [*plugins.files(), *(entry.value for entry in plugins.installed())]
    for name in named:
        yield Finding("plugins", Path(name).name, True, name)
    if not named:
        yield Finding("plugins", "none", None, "domainwise template algorithm > mine.py makes one")


def data(folder: Path | None) -> Iterator[Finding]:
    """Datasets, weights, and space on the disks."""
    from domainwise.data.catalogue import DATASETS, data_root
    from domainwise.data.images.cache_folder import cache_root
    from domainwise.nets.weights import WEIGHTS, find

    root = data_root(folder)
    exists = root.is_dir()
    yield Finding("data", "root", True if exists else None, str(root) if exists else f"{root} does not exist yet")
    for name, known in DATASETS.items():
        parts = known.source.parts if known.source else ()
        absent = [part.name for part in parts if not part.look(root)]
        words = f"without {', '.join(absent)}: domainwise data get {name}" if absent else "here"
        yield Finding("data", name, None if absent else True, words)
    for name, weights in WEIGHTS.items():
        try:
            yield Finding("weights", name, True, str(find(weights.file, root)))
        except UserError:
            how = f"domainwise weights get {name}" if weights.sha256 else f"put {weights.file} into {root / 'weights'}"
            yield Finding("weights", name, None, f"absent: {how}")
    for name, folder in (("cache", cache_root()), ("here", Path.cwd())):
        yield _space(name, folder)


def _space(name: str, folder: Path) -> Finding:
    """The free space on the disk a folder is on, or will be."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    writable = os.access(existing, os.W_OK)
    words = f"{free / 2**30:.1f} GiB free in {folder}" + ("" if writable else ", which cannot be written to")
    return Finding("disk", name, writable and free > LITTLE_SPACE, words)
