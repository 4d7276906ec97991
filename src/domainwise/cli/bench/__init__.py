"""`domainwise bench`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from domainwise.cli import options
from domainwise.cli.output import console, print_json
from domainwise.cli.progress import activity
from domainwise.core.table import Table

EXAMPLES = (
    "Examples:  [bold]domainwise bench --device cpu[/]   ·   "
    "[bold]domainwise bench --dataset PACS --network resnet18 --batch-size 32 --out results/bench/pacs.json[/]"
)


def bench(
    dataset: Annotated[str, typer.Option(help="See: domainwise list.")] = "ColoredMNIST-embedded",
    network: Annotated[str | None, typer.Option(help="Network (default: the dataset's).")] = None,
    algorithms: options.Algorithms = "ERM,DAT,AT,IRM",
    batch_size: Annotated[
        int | None, typer.Option(help="Images per domain (default: the protocol's, 16 on a CPU).", min=2)
    ] = None,
    precisions: Annotated[str, typer.Option(help="Precisions to measure, if the device has them.")] = "fp32,tf32,bf16",
    at_once: Annotated[int, typer.Option(help="Runs that share a GPU; 1: none.", min=1)] = 8,
    seconds: Annotated[float, typer.Option(help="Seconds per measurement, without start-up.", min=0)] = 2.0,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Time steps and evaluations on this machine, compared with a plain loop in DomainBed's style."""
    from domainwise.algorithms import ALGORITHMS
    from domainwise.cli.bench.machine import describe
    from domainwise.cli.bench.steps import Bench
    from domainwise.core import files
    from domainwise.core.errors import unknown
    from domainwise.data.find import find_dataset
    from domainwise.engine.devices import pick_device
    from domainwise.protocol.runs import PRECISIONS
    from domainwise.sweeps.plan_run import search_space

    data, chosen_device = find_dataset(dataset), pick_device(device)
    algorithm_names, precision_names = options.parse_names(algorithms), options.parse_names(precisions)
    for precision in precision_names:
        if precision not in PRECISIONS:
            raise unknown("precision", precision, PRECISIONS)
    for algorithm in algorithm_names:
        ALGORITHMS[algorithm]
    default = int(search_space("ERM", data.scale)["batch_size"].default) if chosen_device.type == "cuda" else 16
    size = batch_size or default
    benchmark = Bench(data, network or data.network, size, chosen_device, data_root, seconds)
    about = describe(chosen_device) | {"dataset": data.title, "network": benchmark.network, "batch_size": size}
    if out is not None:
        files.writable_file(out)
    rows = []
    with activity("measuring") as now:
        for row in benchmark.rows(algorithm_names, precision_names, at_once):
            rows.append(asdict(row))
            now(f"measured {row.what}, {row.precision}, {row.form}: {row.milliseconds:.3g} ms")
    result = about | {"rows": rows}
    if out is not None:
        with files.atomic(out) as file:
            file.write((json.dumps(result, indent=1) + "\n").encode())
    if as_json:
        print_json(result)
    else:
        _show(about, rows)


def _show(about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    lines = [
        (
            f"{row['what']}, {row['precision']}, {row['form']}",
            f"{row['milliseconds']:.3g}" if row["milliseconds"] < 100 else f"{row['milliseconds']:.0f}",
            f"{row['images_per_second']:.0f}",
            f"{row['times_plain']:.2f}",
            "" if row["of_matrix_rate"] is None else f"{row['of_matrix_rate']:.0%}",
            f"{row['start_seconds']:.1f}",
            f"{row['peak_gib']:.2f}",
        )
        for row in rows
    ]
    title = f"{about['network']} on {about['dataset']}, {about['batch_size']} images per domain"
    caption = f"{about['device']}, torch {about['torch']}, {about['threads']} threads"
    headings = ("what", "ms", "images/s", "x plain", "of matrix rate", "start s", "GiB")
    console.print(Table(headings, lines, title, caption))
