"""Plans: lists of Runs."""

from collections.abc import Mapping, Sequence

from domainwise.data import DATASETS
from domainwise.protocol.spaces import Value
from domainwise.runs import Run


def leave_one_out(
    dataset: str,
    algorithms: Mapping[str, Mapping[str, Value]],
    trials: int,
    *,
    steps: int | None = None,
    seed: int = 0,
) -> list[Run]:
    """Every domain unseen in turn, for each algorithm (with the hyper-parameters given) and trial.

    Trials come first, so that an interrupted plan has compared all algorithms on the trials it finished.
    """
    domains: Sequence[str] = DATASETS.find(dataset).domains
    return [
        Run.plan(dataset, name, [domain], hparams=hparams, trial=trial, steps=steps, seed=seed)
        for trial in range(trials)
        for domain in domains
        for name, hparams in algorithms.items()
    ]
