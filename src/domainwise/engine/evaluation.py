"""Evaluation: accuracy, loss and further metrics on splits of domains, with one synchronisation for all of them."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.data.environments import Environments
from domainwise.data.streaming import chunks
from domainwise.engine.execution.capture import first_line, record
from domainwise.engine.metrics import measure
from domainwise.protocol.metrics import MEASURED, SMALLEST_GROUP, WORST_GROUP
from domainwise.protocol.records import SplitScores
from domainwise.protocol.runs import Run

log = logging.getLogger(__name__)

Split = tuple[str, str]
"""(domain, "in" or "out")."""
ScoresBySplit = dict[Split, SplitScores]
KEPT = 1 << 26
"""Logits that are kept until their metrics are computed."""


def splits_to_evaluate(run: Run, environments: Environments) -> dict[Split, Tensor]:
    """The rows that some selection rule uses: `out` of the training domains, `in` and `out` of the others.

    With full curves, `in` of the training domains too. All of a validation domain is evaluated, as its `in`.
    """
    splits = {}
    for domain in run.domains:
        rows = environments.split(domain, run.trial, run.held_out_of(domain))
        for name in ("out",) if domain in run.train_domains and not run.full_curves else ("in", "out"):
            if len(rows[name]):
                splits[domain, name] = rows[name].to(environments.device)
    return splits


def check_groups(runs: Iterable[Run], environments: Environments) -> None:
    """Raises UserError unless the worst group is known in every split that these runs evaluate."""
    needs = f"{WORST_GROUP.name} needs {WORST_GROUP.needs}"
    if environments.groups is None:
        raise UserError(f"{environments.name} has no groups: {needs}", argument="metric")
    for run in runs:
        for (domain, name), rows in splits_to_evaluate(run, environments).items():
            largest = int(environments.groups[rows.cpu()].unique(return_counts=True)[1].max())
            if largest < SMALLEST_GROUP:
                where = f"{environments.name}/{domain}, split {name} of trial {run.trial}"
                raise UserError(
                    f"{where}: its largest group has {counted(largest, 'sample')}: {needs}", argument="metric"
                )


class Evaluator:
    """Evaluates one training repeatedly; on a GPU by replaying a CUDA graph, recorded the second time.

    `launch` does not wait for the GPU and `results` does, so that other trainings can use the GPU in between. Without
    `metrics` only accuracy and loss are computed.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        environments: Environments,
        splits: Mapping[Split, Tensor],
        train_domains: Sequence[str],
        *,
        capture: bool = True,
        metrics: bool = True,
    ) -> None:
        self.splits = splits
        groups = _groups(environments, splits) if metrics else None
        self.measure = partial(scores, algorithm, environments, splits, train_domains, metrics=metrics, groups=groups)
        width = 2 + len(MEASURED) * metrics
        self.scores = torch.zeros(len(splits), width, device=environments.device, dtype=torch.float64)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.capture = capture and environments.device.type == "cuda" and not environments.streamed
        self.warm = False

    def launch(self) -> Tensor:
        """Starts an evaluation in eval mode; returns the tensor that will hold its scores."""
        if not self.splits:
            return self.scores
        if self.capture and self.warm:
            self.capture, self.graph = False, self._record()
        if self.graph is None:
            self._measure()
        else:
            self.graph.replay()
        self.warm = True
        return self.scores.clone()

    def results(self, scores: Tensor) -> ScoresBySplit:
        """Those of each split by an evaluation that was launched; empty if nothing was held out."""
        return dict(zip(self.splits, map(SplitScores.of, scores.tolist()), strict=True))

    def __call__(self) -> ScoresBySplit:
        return self.results(self.launch())

    def _measure(self) -> None:
        self.scores.copy_(self.measure())

    def _record(self) -> torch.cuda.CUDAGraph | None:
        try:
            return record(self._measure, warm_up=2)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            log.warning("evaluation is not captured, and slower for it: %s", first_line(error))
            return None


def evaluate(
    algorithm: Algorithm, environments: Environments, splits: Mapping[Split, Tensor], train_domains: Sequence[str]
) -> ScoresBySplit:
    """The scores on each split, in eval mode, once."""
    return Evaluator(algorithm, environments, splits, train_domains)()


@torch.no_grad()
def scores(
    algorithm: Algorithm,
    environments: Environments,
    splits: Mapping[Split, Tensor],
    train_domains: Sequence[str],
    *,
    metrics: bool = True,
    groups: Mapping[Split, Tensor] | None = None,
) -> Tensor:
    """Accuracy, mean loss and the further metrics of each split, [splits, 8], without waiting for the device.

    Without `metrics` only the first two. `groups` are numbers of the groups within each split, where these are known.
    An algorithm whose predictions depend on their batch sees batches of the training size, each from one domain.
    """
    batch_size = algorithm.hparams["batch_size"] if algorithm.batch_dependent else chunk_size(environments)
    algorithm.eval()
    totals, further = [], SplitMetrics()
    for (domain, name), rows in splits.items():
        number = train_domains.index(domain) if domain in train_domains else None
        total = torch.zeros(2, device=rows.device, dtype=torch.float64)
        for images, y in chunks(environments, rows, batch_size):
            logits = algorithm.predict(environments.normalise(images), number)
            correct = (logits.argmax(1) == y).sum()
            total += torch.stack([correct, F.cross_entropy(logits, y, reduction="sum")])
            if metrics:
                further.add(logits, y)
        totals.append(total / len(rows))
        further.end_split(len(rows), None if groups is None else groups[domain, name])
    algorithm.train()
    measured = torch.stack(totals)
    return torch.cat([measured, further.values()], 1) if metrics else measured


class SplitMetrics:
    """Keeps the logits of splits, and measures many splits at once: more when their logits take too much memory."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.sizes: list[int] = []
        self.groups: list[Tensor] = []
        self.measured: list[Tensor] = []

    def add(self, logits: Tensor, labels: Tensor) -> None:
        self.logits.append(logits)
        self.labels.append(labels)

    def end_split(self, size: int, groups: Tensor | None = None) -> None:
        self.sizes.append(size)
        self.groups += [] if groups is None else [groups]
        if sum(one.numel() for one in self.logits) >= KEPT:
            self._measure()

    def values(self) -> Tensor:
        """Those of all splits, [splits, 6]."""
        self._measure()
        return torch.cat(self.measured)

    def _measure(self) -> None:
        if self.logits:
            logits = torch.cat(self.logits)
            probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(1)
            groups = torch.cat(self.groups) if self.groups else None
            self.measured.append(measure(probabilities, torch.cat(self.labels), self.sizes, groups))
        self.logits, self.labels, self.sizes, self.groups = [], [], [], []


def _groups(environments: Environments, splits: Mapping[Split, Tensor]) -> dict[Split, Tensor] | None:
    """The groups of the samples of each split, numbered from 0; None where no groups are known."""
    if environments.groups is None:
        return None
    return {
        split: environments.groups[rows.cpu()].unique(return_inverse=True)[1].to(rows.device)
        for split, rows in splits.items()
    }


def chunk_size(environments: Environments) -> int:
    """Images per batch: on a GPU enough small ones to keep it busy, and few enough large ones to leave memory."""
    if environments.device.type != "cuda":
        return 500
    return min(max(256, 2**21 // (environments.images[0].numel() // environments.shape[0])), 2048)
