"""tune: hyper-parameters and the number of steps, chosen by domains left out in turn."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from domainwise.core.errors import UserError
from domainwise.core.table import Table, Tabular
from domainwise.data.environments import Environments
from domainwise.models.calibrate import calibrated, unseen_logits
from domainwise.models.fit import fit, records_folder
from domainwise.models.model import Model
from domainwise.models.search import Candidate, finished_curves, plan_candidates, ranked_candidates, train_candidates
from domainwise.models.unseen import unseen_estimate
from domainwise.protocol.metrics import ACCURACY, Metric
from domainwise.protocol.options import TrainingKeywords
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.spaces import HParams
from domainwise.sweeps.events import Event, Settings
from domainwise.sweeps.plan import Plan
from domainwise.sweeps.plan_run import training_options


@dataclass(frozen=True, repr=False)
class Tuning(Tabular):
    """All candidates, the best first, and the model of the best if `refit` was set.

    The accuracy of the best of many is optimistic, because it was chosen; `compare` gives an honest one.
    """

    tried: tuple[Candidate, ...]
    model: Model | None = None

    def as_table(self) -> Table:
        rows = [
            (str(one.method), str(one.number), f"{100 * one.accuracy:.1f} %", str(one.steps), _shown(one.hparams))
            for one in self.tried
        ]
        headings = ("algorithm", "candidate", "accuracy", "steps", "hyper-parameters")
        return Table(headings, rows, "Mean accuracy on domains left out in turn, the best candidate first")

    def to_records(self) -> list[dict[str, Any]]:
        return [
            {"algorithm": str(one.method), "candidate": one.number, "accuracy": one.accuracy, "steps": one.steps}
            | {f"hparams.{name}": value for name, value in one.hparams.items()}
            for one in self.tried
        ]

    @property
    def best(self) -> Candidate:
        return self.tried[0]

    @property
    def algorithm(self) -> str:
        return self.best.algorithm

    @property
    def average(self) -> str:
        """The average whose weights did best; empty: those of the last step."""
        return self.best.average

    @property
    def hparams(self) -> HParams:
        return self.best.hparams

    @property
    def steps(self) -> int:
        return self.best.steps


def _shown(hparams: HParams) -> str:
    return ", ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in hparams.items()
    )


def tune(
    environments: Environments | Path | str,
    algorithms: str | Sequence[str] = "DAT",
    *,
    candidates: int = 8,
    trials: int = 1,
    test_domains: Sequence[str | int] | str | int = (),
    workers: int | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    data_root: Path | None = None,
    refit: bool = False,
    progress: Callable[[Event], None] = lambda _: None,
    draws: int | None = None,
    **options: Unpack[TrainingKeywords],
) -> Tuning:
    """Searches hyper-parameters by accuracy on unseen domains, not on held-out samples: each is left out in turn.

    Tries `candidates` sets of values of every algorithm, the defaults and random ones, `trials` times each, several
    runs at once in worker processes, and keeps the values and the number of steps that did best on average. With
    `refit` the best is then trained on all domains. `test_domains` are kept out of everything. With `out` the same call
    continues.

    Further arguments are training options: steps, evaluate_every, network, seed, precision, hparams (fixed values),
    weights, image_size, augmentation, average, start, freeze, train, layer_decay, lr_schedule, clip_gradient,
    early_stop, balance, class_weights. With an average, averaged weights are tried beside the last ones of the same
    trainings. Of candidates that stopped early only the steps count that all their runs have reached. `draws` is the
    former name of `candidates`.
    """
    if draws is not None:
        warnings.warn("tune(draws=...) is now tune(candidates=...)", DeprecationWarning, stacklevel=2)
        candidates = draws
    training = training_options(device, data_root, **options)
    with records_folder(out) as folder:
        plan = plan_candidates(environments, algorithms, training, candidates, trials, test_domains, folder)
        train_candidates(plan, Settings(folder, device, data_root, retry=True), workers, progress)
        tuning = choose(plan, folder)
        if not refit:
            return tuning
        model = refitted(plan, folder, tuning.best, environments, device=device, data_root=data_root, out=out)
        return replace(tuning, model=model)


def choose(plan: Plan, out: Path, metric: Metric = ACCURACY) -> Tuning:
    """From the records: every candidate all of whose runs are done."""
    runs = plan.runs()
    tried = ranked_candidates(plan, finished_curves(runs, out), metric)
    if not tried:
        statuses = (RunFolder(out, run).status() for run in runs)
        reasons = [f"{status.status}: {status.reason}" for status in statuses if status and status.status != "done"]
        raise UserError(f"no candidate has finished all its runs ({next(iter(reasons), 'they have not ended')})")
    return Tuning(tuple(tried))


def refitted(
    plan: Plan,
    runs: Path,
    best: Candidate,
    data: Environments | Path | str,
    *,
    metric: Metric = ACCURACY,
    **arguments: Any,
) -> Model:
    """The best candidate, trained on all domains of the search for its best number of steps.

    Its weights are those of the last step: domains left out have chosen the number of steps. Those of a candidate with
    an average are averaged ones. Its card holds the metric of its method on the domains left out (see
    `models.unseen`). `arguments` are further ones of `fit`: device, data_root, out, progress.
    """
    options = plan.options.changed(hparams=best.hparams, steps=best.steps, average=best.average, early_stop=0)
    save = "averaged" if best.average else "last"
    model = fit(data, best.algorithm, test_domains=plan.test_domains, save=save, **arguments, **vars(options))
    evidence = {
        "unseen": unseen_estimate(finished_curves(plan.runs(), runs), best.method, metric),
        "steps_chosen_by": "domains left out have chosen the number of steps",
    }
    model.card = replace(model.card, training={**model.card.training, **evidence})
    same = [run for run in plan.runs() if (run.algorithm, run.draw, run.trial) == (best.algorithm, best.number, 0)]
    left_out = [RunFolder(runs, run) for run in same if len(run.test_domains) == 1]
    if left_out:
        known = data if isinstance(data, Environments) else None
        where = {name: arguments[name] for name in ("device", "data_root") if name in arguments}
        saved = "averaged" if best.average else "best"
        model = calibrated(model, unseen_logits(left_out, saved, environments=known, **where), "unseen")
    if arguments.get("out") is not None:
        model.save(arguments["out"])
    return model
