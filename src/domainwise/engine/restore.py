"""A trained model back in memory, with the data and the description it belongs to."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.data.sources.folder import find_dataset
from domainwise.engine.devices import pick_device
from domainwise.engine.session import Session
from domainwise.protocol.records import RunFolder
from domainwise.protocol.runs import Run


@dataclass(frozen=True)
class Trained:
    """A run that has ended: its data, and its algorithm in eval mode with the weights of the last step."""

    run: Run
    environments: Environments
    algorithm: Algorithm
    folder: Path

    def domain_number(self, domain: str) -> int | None:
        """How `Algorithm.predict` calls a domain: a training domain by its number, None for an unseen one."""
        return self.run.train_domains.index(domain) if domain in self.run.train_domains else None


def restore(
    path: Path | str,
    *,
    data_root: Path | None = None,
    environments: Environments | None = None,
    device: str = "cpu",
) -> Trained:
    """The model that a training left in `path` (OUT/<run id>); only a run that ended well has one."""
    folder = finished(Path(path))
    run = folder.run
    data = environments or find_dataset(run.dataset).load(data_root, run.image_size)
    with torch.random.fork_rng():
        session = Session(replace(run, weights=""), data, pick_device(device))  # the weights it started from are gone
    try:
        session.algorithm.load_state_dict(folder.load_model())
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{folder.model_file} does not fit its run ({reason}): delete {folder.path}, and train it again"
        ) from None
    return Trained(run, session.environments, session.algorithm.eval(), folder.path)


def finished(path: Path) -> RunFolder:
    """The folder of a run that ended well; any other is the user's mistake."""
    folder = RunFolder.at(path)
    status = folder.status()
    if status is None:
        raise UserError(f"{path}: {folder.run} has not ended: the command that started it continues it")
    if status.status != "done":
        raise UserError(
            f"{path}: {folder.run} {status.status} at step {status.step} ({status.reason}): no model to use"
        )
    if not folder.model_file.is_file():
        raise UserError(
            f"{path}: {folder.run} ended, but its model.safetensors is missing: delete {path}, and train it again"
        )
    return folder
