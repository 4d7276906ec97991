"""`domainwise perturbations`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import console, print_json, say

EXAMPLES = (
    "Examples:  [bold]domainwise perturbations runs/demo[/]   ·   "
    "[bold]domainwise perturbations runs/train/1f0c0ffee0000000 --out perturbations.pdf --json[/]"
)


def perturbations(
    run: Annotated[
        Path,
        typer.Argument(help="Folder of a run or training of DAT, UAT or EnsembleUAT, or of a sweep with one."),
    ],
    out: options.Picture = Path("perturbations.png"),
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
) -> None:
    """What did training add to each domain's images, and does it fit the domain's background, as the paper says?"""
    from domainwise.analysis.perturbations import folder_with_perturbations, measure
    from domainwise.analysis.run_choice import run_folders
    from domainwise.core.table import Table
    from domainwise.engine.restore import restore
    from domainwise.reports.pictures import perturbation_figure
    from domainwise.reports.style import save, writable_picture

    writable_picture(out)
    trained = restore(folder_with_perturbations(run_folders([run])), data_root=data_root)
    measured = measure(trained)
    save(perturbation_figure(measured), out)
    if as_json:
        domains = [
            {
                "domain": one.domain,
                "norm": one.norm,
                "low_frequency_share": one.spectrum.low,
                "white_noise_share": one.noise_low,
                "images_share": one.images_low,
                "cosine_with_background": one.cosine,
                "cosine_by_chance": one.chance,
            }
            for one in measured.domains
        ]
        content = {"method": measured.method, "domains": domains, "sentence": measured.sentence}
        print_json(content | {"weights": trained.weights, "picture": str(out)})
        return
    headings = ("domain", "norm", "low frequency", "white noise", "its images", "cosine with background", "by chance")
    rows = []
    for one in measured.domains:
        shares = (one.spectrum.low, one.noise_low, one.images_low)
        percent = [f"{100 * share:.1f} %" for share in shares]
        rows.append([one.domain, f"{one.norm:.2f}", *percent, f"{one.cosine:+.3f}", f"±{one.chance:.3f}"])
    console.print(Table(headings, rows, caption=trained.weights))
    say(measured.sentence)
    say(f"Picture: {out}")
