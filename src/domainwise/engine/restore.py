"""Load a finished run for analysis: its description, its data and its trained algorithm."""

from dataclasses import dataclass
from pathlib import Path

import torch

from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.engine.assemble import as_read_by, make_algorithm
from domainwise.engine.devices import pick_device
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.saved_weights import saved_weights
from domainwise.protocol.selection import Method


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its data, and its algorithm in eval mode; `weights` says which, `average` of which average."""

    run: Run
    environments: Environments
    algorithm: Algorithm
    folder: Path
    weights: str = ""
    average: str = ""

    @property
    def method(self) -> Method:
        return Method.of(self.run, self.average)

    def domain_number(self, domain: str) -> int | None:
        """The domain as `Algorithm.predict` takes it: the number of a training domain, None for an unseen one."""
        return self.run.train_domains.index(domain) if domain in self.run.train_domains else None


def restore(
    path: Path | str,
    *,
    data_root: Path | None = None,
    environments: Environments | None = None,
    device: str = "cpu",
    save: str = "auto",
) -> TrainedRun:
    """The trained run in `path` (OUT/<run id>), without optimiser and batches; it must have finished successfully.

    `save` names its weights (see `protocol.saved_weights`): "best", "last", "averaged", or "auto".
    """
    folder = finished(Path(path))
    run = folder.run
    data = environments or find_dataset(run.dataset).load(data_root, run.image_size)
    rows = [data.split(domain, run.trial, run.held_out)["in"] for domain in run.train_domains]
    data = as_read_by(run.network, data).standardised(torch.cat(rows)).to(pick_device(device))
    sizes = [len(part) for part in rows]
    algorithm = make_algorithm(run.algorithm, run.network, run.hparams, data.preprocessing, sizes, run.precision)
    weights = saved_weights(folder, save)
    try:
        algorithm.load_state_dict(weights.tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the model in {folder.path} does not fit its run ({reason}): delete {folder.path}, and train it again"
        ) from None
    return TrainedRun(run, data, algorithm, folder.path, str(weights), weights.average)


def finished(path: Path) -> RunFolder:
    """The folder of a run that finished successfully; any other is a UserError."""
    folder = RunFolder.at(path)
    if folder.run.combination:
        raise UserError(
            f"{path} holds the records of {folder.run}, not its weights: give the folder of its model, or of one of "
            "its runs"
        )
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
