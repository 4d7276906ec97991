"""`domainwise serve`."""

from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import errors_console, say
from domainwise.serving.limits import Limits

EXAMPLES = (
    "Examples:  [bold]domainwise serve runs/train[/]"
    "   ·   [bold]domainwise serve runs/train --port 9000 --abstain risk=0.05 --sets 0.9[/]"
)
DEFAULTS = Limits()


def serve(
    model: options.ModelFolder,
    host: Annotated[str, typer.Option(help="Address to listen at; the default is for this machine alone.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen at; 0: any that is free.", min=0, max=65535)] = 8000,
    abstain: options.Abstain = "",
    sets: options.Sets = "",
    max_megabytes: Annotated[float, typer.Option(help="Largest image file, in MiB.")] = DEFAULTS.max_megabytes,
    max_megapixels: Annotated[
        float, typer.Option(help="Largest image, in millions of pixels; a larger one is not decoded.")
    ] = DEFAULTS.max_megapixels,
    max_images: Annotated[int, typer.Option(help="Most images in one request.")] = DEFAULTS.max_images,
    queue: Annotated[
        int, typer.Option(help="Most images that are worked on or wait; requests beyond get 503.")
    ] = DEFAULTS.queue,
    batch_size: Annotated[
        int, typer.Option(help="Most images of concurrent requests that the model computes at once.")
    ] = DEFAULTS.batch_size,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of the model (default: all cores but one).", min=1, max=4096)
    ] = None,
    device: options.Device = "auto",
) -> None:
    """Answer requests over HTTP with a model, until Ctrl-C or SIGTERM.

    POST images to /predict: as a form, as base64 in JSON, or the bytes of one. /health says whether the model answers,
    /metrics has counters for Prometheus, and / is a page to try it. Standard output has one line of JSON per request.
    """
    from domainwise.serving.app import create_app
    from domainwise.serving.server import is_loopback, run

    limits = Limits(max_megabytes, max_megapixels, max_images, batch_size, queue)
    app = create_app(model, limits=limits, abstain=abstain, sets=sets, threads=threads, device=device)
    service = app.state.service
    if warning := service.answers.rule(None, None).warning:
        say(f"warning: {warning}", errors_console)
    if service.watch.missing:
        say(f"note: no drift is measured: {service.watch.missing}", errors_console)

    def started(address: str) -> None:
        if not is_loopback(host):
            say(
                f"warning: {address} answers whoever reaches it, without password or encryption: let only a proxy or a "
                "private network reach it",
                errors_console,
            )
        say(f"{model}: {address} (Ctrl-C stops)", errors_console)

    run(app, host, port, started=started)
