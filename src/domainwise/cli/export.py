"""`domainwise export`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import complete, options
from domainwise.cli.output import say

EXAMPLES = (
    "Examples:  [bold]domainwise export runs/train --to onnx[/]"
    "   ·   [bold]domainwise export runs/train --to torch --out classifier.pt2[/]"
)


def export(
    model: options.ModelFolder,
    to: Annotated[
        str, typer.Option(help="onnx, or torch (torch.export).", autocompletion=complete.among("onnx", "torch"))
    ] = "onnx",
    out: Annotated[Path | None, typer.Option(help="File to write (default: model.onnx or model.pt2 in MODEL).")] = None,
) -> None:
    """Write a model as one file for other runtimes, checked against the model.

    It takes raw images (uint8 [N, channels, height, width], any N) and normalises them itself.
    """
    from domainwise.models.export import SUFFIXES, TOLERANCE
    from domainwise.models.export import export as write
    from domainwise.models.folder import load_model

    loaded = load_model(model, device="cpu")
    file = write(loaded, to, out or model / f"model{SUFFIXES.get(to, '')}")
    say(f"{file}: agrees with the model to {TOLERANCE:g}; its metadata describe its input; {loaded.weights}")
