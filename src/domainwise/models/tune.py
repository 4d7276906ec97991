"""tune: hyper-parameters and the number of steps, chosen by domains left out in turn."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.data.sources.saved import save_environments, saved_dataset
from domainwise.engine.devices import pick_precision
from domainwise.models.fit import fit, records_folder
from domainwise.models.model import Model
from domainwise.models.search import Candidate, Search, candidates
from domainwise.models.source import source
from domainwise.nets.weights import planned
from domainwise.protocol.records import RunFolder
from domainwise.protocol.spaces import HParams, Value
from domainwise.sweep.events import Event, Settings


@dataclass(frozen=True)
class Tuning:
    """What was chosen, everything that was tried (the best first), and the model if it was asked for.

    The accuracy of the best of many is flattered by the choice; `compare` gives an honest one.
    """

    tried: tuple[Candidate, ...]
    model: Model | None = None

    @property
    def best(self) -> Candidate:
        return self.tried[0]

    @property
    def algorithm(self) -> str:
        return self.best.algorithm

    @property
    def hparams(self) -> HParams:
        return self.best.hparams

    @property
    def steps(self) -> int:
        return self.best.steps


def tune(
    environments: Environments | Path | str,
    algorithms: str | Sequence[str] = "DAT",
    *,
    draws: int = 8,
    trials: int = 1,
    test_domains: Sequence[str | int] | str | int = (),
    hparams: Mapping[str, Value] | None = None,
    steps: int | None = None,
    evaluate_every: int | None = None,
    network: str | None = None,
    precision: str = "auto",
    workers: int | None = None,
    device: str = "auto",
    seed: int = 0,
    out: Path | str | None = None,
    data_root: Path | None = None,
    image_size: int | None = None,
    weights: str = "",
    augmentation: str | None = None,
    refit: bool = False,
    progress: Callable[[Event], None] = lambda _: None,
) -> Tuning:
    """Searches hyper-parameters by domains, not samples: each is left out in turn, and judged by who never saw it.

    Tries the defaults and `draws` - 1 random draws of every algorithm, `trials` times each, several runs at once in
    worker processes, and keeps the values and the number of steps that did best on average. With `refit` the chosen is
    then trained on all domains. `test_domains` are kept out of everything. With `out` the same call continues.
    """
    with records_folder(out) as folder:
        data = _for_workers(environments, folder, network)
        named = (test_domains,) if isinstance(test_domains, (str, int)) else tuple(test_domains)
        search = Search(
            data,
            (algorithms,) if isinstance(algorithms, str) else tuple(algorithms),
            draws=draws,
            trials=trials,
            test_domains=tuple(map(str, named)),
            hparams=hparams,
            steps=steps,
            evaluate_every=evaluate_every,
            network=network,
            image_size=image_size,
            augmentation=augmentation,
            weights=planned(network or "", weights, data_root),
            precision=pick_precision(precision, device),
            seed=seed,
        )
        with closing(search.execute(Settings(folder, device, data_root, retry=True), workers)) as events:
            for event in events:
                progress(event)
        tuning = choose(search, folder)
        if not refit:
            return tuning
        model = refitted(search, tuning.best, environments, device=device, data_root=data_root, out=out)
        return replace(tuning, model=model)


def choose(search: Search, out: Path) -> Tuning:
    """From the records: every candidate all of whose runs ended well."""
    tried = candidates(search, search.curves(out))
    if not tried:
        statuses = (RunFolder(out, run).status() for run in search.runs)
        reasons = [f"{status.status}: {status.reason}" for status in statuses if status and status.status != "done"]
        raise UserError(f"no candidate has finished all its runs ({next(iter(reasons), 'they have not ended')})")
    return Tuning(tuple(tried))


def refitted(
    search: Search,
    best: Candidate,
    data: Environments | Path | str,
    *,
    device: str = "auto",
    data_root: Path | None = None,
    out: Path | str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Model:
    """The chosen, trained on all domains for as many steps as were best."""
    return fit(
        data,
        best.algorithm,
        test_domains=search.test_domains,
        hparams=best.hparams,
        steps=best.steps,
        evaluate_every=search.evaluate_every,
        network=search.network,
        precision=search.precision,
        device=device,
        seed=search.seed,
        data_root=data_root,
        image_size=search.image_size,
        weights=search.weights,
        augmentation=search.augmentation,
        out=out,
        progress=progress,
    )


def _for_workers(data: Environments | Path | str, out: Path, network: str | None) -> Dataset:
    """The data as a dataset that worker processes can load: what is in memory is left in a folder for them."""
    if not isinstance(data, Environments):
        return find_dataset(str(data)).for_network(network)
    named = source(data).environments
    return saved_dataset(save_environments(named, out / named.name))
