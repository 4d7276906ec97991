"""The folder that is attacked: one file of every format the program reads, from a small training of noise."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
from PIL import Image

from attacks.tries import Try, ask

DOMAINS, CLASSES = ("clinic", "lab", "street"), ("cat", "dog")
SMALL = ("--image-size", "8", "--network", "small-cnn", "--hparam", "batch_size=2", "--device", "cpu")


def photos(workspace: Path) -> str:
    return str(workspace / "photos")


def sweep_arguments(workspace: Path, out: str = "sweep") -> tuple[str, ...]:
    length = ("--hparams", "1", "--trials", "1", "--steps", "7", "--evaluate-every", "3", "--workers", "1")
    methods = ("--algorithms", "ERM,DAT", "--track", "penalties")
    return ("sweep", "--data", photos(workspace), *methods, *length, *SMALL, "--out", out)


def train_arguments(workspace: Path, out: str) -> tuple[str, ...]:
    unseen = ("--algorithm", "DAT", "--test-domain", "lab", "--steps", "9", "--evaluate-every", "4")
    return ("train", "--data", photos(workspace), *unseen, *SMALL, "--out", out)


def write_photos(folder: Path, count: int = 6) -> None:
    """Noise, different in every file, whose time is fixed."""
    for d, domain in enumerate(DOMAINS):
        for c, label in enumerate(CLASSES):
            (folder / domain / label).mkdir(parents=True)
            for number in range(count):
                pixels = np.random.default_rng([d, c, number]).integers(0, 256, (12, 16, 3), dtype=np.uint8)
                file = folder / domain / label / f"{number:03}.png"
                Image.fromarray(pixels).save(file)
                os.utime(file, ns=(1, 1))


def build(workspace: Path) -> None:
    """Makes every folder of the workspace by the program's own commands."""
    write_photos(workspace / "photos")
    for arguments in (
        sweep_arguments(workspace),
        ("audit", "sweep", "--selected"),
        ("publish", "sweep", "published"),
        ("export-domainbed", "sweep", "domainbed"),
        train_arguments(workspace, "model"),
    ):
        _make(workspace, arguments)
    for folder, copy, arguments in (
        ("model", "calibrated", ("calibrate", "calibrated", "--data", photos(workspace))),
        ("sweep", "combined", ("ensemble", "combined", "--device", "cpu")),
    ):
        shutil.copytree(workspace / folder, workspace / copy, dirs_exist_ok=True)
        _make(workspace, arguments)
    _make(workspace, train_arguments(workspace, "unfinished"), interrupted=True)
    _save_tables(workspace)
    _save_environments(workspace / "saved")
    _save_weights(workspace)


def _make(workspace: Path, arguments: tuple[str, ...], interrupted: bool = False) -> None:
    """Runs a command whose folders are those of the workspace itself."""

    def prepare(scratch: Path) -> None:
        os.environ["DOMAINWISE_CACHE"] = str(workspace / "cache")
        for name in ("sweep", "published", "domainbed", "model", "unfinished", "calibrated", "combined"):
            (workspace / name).mkdir(exist_ok=True)
            (scratch / name).symlink_to(workspace / name)
        if interrupted:
            _interrupt_after(4)

    answer = ask(Try("build", 0, "", "", arguments, (), prepare), workspace, workspace)
    if bool(answer.status) != interrupted:
        raise SystemExit(f"domainwise {' '.join(arguments)} failed:\n{answer.out}{answer.err}")


def _interrupt_after(step: int) -> None:
    """Ctrl-C once the evaluation of a step is on the disk."""
    from domainwise.protocol.run_folder import RunFolder

    append = RunFolder.append

    def appended(self: RunFolder, rows: list) -> None:  # type: ignore[type-arg]
        rows = list(rows)
        append(self, rows)
        if any(row.step >= step for row in rows):
            os.kill(os.getpid(), signal.SIGINT)

    RunFolder.append = appended  # type: ignore[method-assign,assignment]


def _save_environments(folder: Path) -> None:
    from domainwise.data.environments import Environments
    from domainwise.data.sources.saved import save_environments

    luck = np.random.default_rng(0)
    domains = {domain: (luck.integers(0, 256, (12, 3, 8, 8), dtype=np.uint8), np.arange(12) % 2) for domain in DOMAINS}
    save_environments(Environments.from_arrays(domains, name="saved", classes=CLASSES), folder)


def _save_tables(workspace: Path) -> None:
    """The list of the photos in every format of tables."""
    import pyarrow as pa
    import pyarrow.parquet

    files = sorted((workspace / "photos").rglob("*.png"))
    rows = [{"path": str(file), "label": file.parent.name, "domain": file.parents[1].name} for file in files]
    (workspace / "tables").mkdir()
    with (workspace / "tables/photos.csv").open("w", newline="") as text:
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    (workspace / "tables/photos.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), workspace / "tables/photos.parquet")


def _save_weights(workspace: Path) -> None:
    """The model's features as a file that a network of the same kind can start from."""
    import safetensors.torch

    (workspace / "weights").mkdir()
    (trained,) = workspace.glob("model/*/model.safetensors")
    safetensors.torch.save_file(safetensors.torch.load_file(trained), workspace / "weights" / "small.safetensors")
