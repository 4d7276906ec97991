"""`domainwise perturbations`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from domainwise.cli.common import DataRoot, Json, console, print_json, say

EXAMPLES = (
    "Examples:  [bold]domainwise perturbations runs/demo[/]   ·   "
    "[bold]domainwise perturbations runs/train/1f0c0ffee0000000 --out perturbations.pdf --json[/]"
)


def perturbations(
    run: Annotated[
        Path,
        typer.Argument(help="Folder of a run or training of DAT, UAT or EnsembleUAT, or of a sweep with one."),
    ],
    out: Annotated[Path, typer.Option(help="The picture: .png, .pdf or .svg.")] = Path("perturbations.png"),
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """What did training add to each domain's images, and does it fit the domain's background, as the paper says?"""
    from domainwise.analysis.choose import chosen_folders
    from domainwise.analysis.perturbations import measure, of_interest
    from domainwise.engine.restore import restore
    from domainwise.report.canvas import save, writable_picture
    from domainwise.report.perturbed import perturbation_figure

    writable_picture(out)
    measured = measure(restore(of_interest(chosen_folders([run])), data_root=data_root))
    save(perturbation_figure(measured), out)
    if as_json:
        domains = [
            {
                "domain": found.domain,
                "norm": found.norm,
                "low_frequency_share": found.spectrum.low,
                "white_noise_share": found.noise_low,
                "mean_image_share": found.mean_spectrum.low,
                "cosine_with_background": found.cosine,
                "cosine_by_chance": found.chance,
            }
            for found in measured.domains
        ]
        print_json({"method": measured.method, "domains": domains, "sentence": measured.sentence, "picture": str(out)})
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    headings = ("domain", "norm", "low frequency", "white noise", "mean image", "cosine with background", "by chance")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "domain" else "right")
    for found in measured.domains:
        shares = (found.spectrum.low, found.noise_low, found.mean_spectrum.low)
        row = [f"{100 * share:.1f} %" for share in shares]
        table.add_row(escape(found.domain), f"{found.norm:.2f}", *row, f"{found.cosine:+.3f}", f"±{found.chance:.3f}")
    console.print(table)
    say(measured.sentence)
    say(f"Picture: {out}")
