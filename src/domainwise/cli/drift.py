"""`domainwise drift`."""

import typer
from rich.markup import escape
from rich.table import Table

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say

EXAMPLES = (
    "Examples:  [bold]domainwise drift runs/train new_camera/[/]"
    "   ·   [bold]domainwise drift runs/train 'today/*.jpg' --json[/]"
)


def drift(
    model: options.ModelFolder,
    images: options.Images,
    device: options.Device = "auto",
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Measure how far new, unlabelled images are from the training domains, in the model's features.

    The kernel two-sample test compares them with each training domain: MMD^2 (about 0 if nothing differs) and its
    p-value. An image that cannot be read is named, and the exit status is then 1.
    """
    import torch

    from domainwise.core.seeds import permutation
    from domainwise.models import drift as drifting
    from domainwise.models.folder import load_model
    from domainwise.models.stream import find_images, read_batches

    loaded = load_model(model, device=device)
    files = find_images(images)
    chosen = permutation(len(files), "drift files", seed)[: drifting.LARGEST].sort().values.tolist()
    batches = list(read_batches([files[i] for i in chosen], loaded))
    unreadable = [line for batch in batches for line in batch.unreadable]
    for line in unreadable:
        say(line, errors_console)
    result = drifting.drift(loaded, torch.cat([batch.images for batch in batches]), seed=seed)
    if as_json:
        print_json({**result.as_json(), "found": len(files)})
    else:
        number = f"{result.samples}" if result.samples == len(files) else f"{result.samples} of {len(files)}"
        caption = f"{number} images against held-out images of each domain"
        if result.between is not None:
            distance = f"up to {result.between:.4f} from" if result.between > 0 else "not distinguishable from"
            caption += f"; the training domains are {distance} one another"
        table = Table(title=f"Distance to what {escape(str(model))} was trained on", caption=caption)
        table.add_column("training domain", overflow="fold")
        for heading in ("held out", "MMD²", "p"):
            table.add_column(heading, justify="right")
        tests = {**result.domains, drifting.TOGETHER: result.together}
        compared = sum(result.references[domain] for domain in result.domains)
        for domain, count in {**result.references, drifting.TOGETHER: compared}.items():
            measured = (f"{tests[domain].mmd2:.4f}", f"{tests[domain].p:.3f}") if domain in tests else ()
            table.add_row(escape(domain), str(count), *measured)
        console.print(table)
        say(result.sentence)
        say(f"Features: {loaded.weights}.")
    if unreadable:
        raise typer.Exit(1)
