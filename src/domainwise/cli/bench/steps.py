"""Times of steps and evaluations: the engine in its modes beside the plain loop, measured in one run."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from domainwise.cli.bench.machine import matrix_rate, peak_memory, seconds_each
from domainwise.cli.bench.plain_loop import PlainLoop
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.data.environments import Environments
from domainwise.engine.devices import check_precision, now
from domainwise.engine.evaluation import Evaluator, Split, splits_to_evaluate
from domainwise.engine.execution import Execution, Mode
from domainwise.engine.execution.isolation import RunContext
from domainwise.engine.session import Session
from domainwise.nets import NETWORKS
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run

log = logging.getLogger(__name__)


class Form(NamedTuple):
    """How steps are run, and of how many runs in turns."""

    mode: Mode
    runs: int = 1

    def __str__(self) -> str:
        return f"{self.runs} in turns" if self.runs > 1 else self.mode


EAGER = Form("eager")


@dataclass(frozen=True)
class Measurement:
    """One measurement; of several interleaved runs, per run."""

    what: str
    precision: str
    form: str
    start_seconds: float
    milliseconds: float
    images_per_second: float
    times_plain: float
    of_matrix_rate: float | None
    peak_gib: float


@dataclass(frozen=True)
class Bench:
    """The dataset, network, batch size and device of all measurements."""

    dataset: Dataset
    network: str
    batch_size: int
    device: torch.device
    data_root: Path | None = None
    budget: float = 2.0
    """Seconds spent on each measurement, besides its start."""

    def run(self, algorithm: str, precision: str) -> Run:
        hparams = {"batch_size": self.batch_size}
        unseen = self.dataset.testable[-1]
        plan = plan_run(self.dataset, algorithm, [unseen], network=self.network, hparams=hparams, precision=precision)
        return replace(plan, weights="")  # random weights take as long

    def rows(self, algorithms: Sequence[str], precisions: Sequence[str], at_once: int) -> Iterator[Measurement]:
        """The plain loop, then every algorithm in every precision; on a GPU ERM also in its slower modes."""
        environments = self.dataset.load(self.data_root)
        plain = self.run("ERM", "fp32")
        loop = PlainLoop(environments, plain.train_domains, self.network, self.batch_size, self.device)
        images = self.batch_size * len(plain.train_domains)
        yield (first := self._row("plain loop", "default", EAGER, loop.step, images, None, None))
        rates = {}
        for precision in precisions:
            try:
                check_precision(precision, self.device)
            except UserError:
                continue
            rates[precision] = matrix_rate(self.device, precision, self.budget / 4)
            for algorithm in algorithms:
                for form in self._forms(algorithm, at_once):
                    try:
                        yield self._engine(algorithm, precision, form, images, first.milliseconds, rates[precision])
                    except torch.OutOfMemoryError:
                        log.warning("%s, %s, %s does not fit the device", algorithm, precision, form)
        rows = list(self._splits(plain, environments).values())
        evaluated = sum(map(len, rows))
        evaluate = partial(loop.evaluate, rows)
        yield (first := self._row("plain evaluation", "default", EAGER, evaluate, evaluated, None, None))
        for precision in rates:
            session, context = self._session(self.run("ERM", precision))
            form = Form("captured") if self.device.type == "cuda" else EAGER
            for what, run in {"evaluation": session.run, "all splits": replace(session.run, full_curves=True)}.items():
                with context:
                    splits = self._splits(run, session.environments)
                    evaluator = Evaluator(session.algorithm, session.environments, splits, run.train_domains)
                    evaluator()
                    images = sum(map(len, splits.values()))
                    as_many = first.milliseconds * images / evaluated
                    row = self._row(what, precision, form, evaluator, images, as_many, None)
                yield row

    def _splits(self, run: Run, environments: Environments) -> dict[Split, Tensor]:
        """The rows an evaluation uses; on a CPU a fiftieth of each split."""
        share = 1 if self.device.type == "cuda" else 50
        splits = splits_to_evaluate(run, environments)
        return {split: rows[: -(-len(rows) // share)] for split, rows in splits.items()}

    def _forms(self, algorithm: str, at_once: int) -> list[Form]:
        if self.device.type != "cuda":
            return [EAGER]
        compiled: list[Mode] = ["compiled"] if getattr(NETWORKS[self.network], "compiles", True) else []
        alone: list[Mode] = ["eager", "captured", *compiled] if algorithm == "ERM" else (compiled or ["captured"])
        return [*map(Form, alone), *([Form("compiled", at_once)] if at_once > 1 else [])]

    def _session(self, run: Run, mode: Mode | None = None) -> tuple[Session, RunContext]:
        context = RunContext(self.device, run.precision, torch.get_num_threads())
        with context:
            return Session(run, self.resident, self.device, execution=Execution(mode) if mode else None), context

    @cached_property
    def resident(self) -> Environments:
        """The data on the device, once for all sessions."""
        return self.dataset.load(self.data_root).to(self.device)

    def _engine(
        self, algorithm: str, precision: str, form: Form, images: int, plain: float, rate: float
    ) -> Measurement:
        run = self.run(algorithm, precision)
        sessions = [self._session(replace(run, trial=trial), form.mode) for trial in range(form.runs)]

        def round_of_steps() -> None:
            for session, context in sessions:
                with context:
                    session.step()

        with sessions[0][1], FlopCounterMode(display=False) as counter:
            sessions[0][0].update()
        ideal = counter.get_total_flops() / rate
        row = self._row(algorithm, precision, form, round_of_steps, images, plain, ideal)
        sessions.clear()
        gc.collect()
        return row

    def _row(
        self,
        what: str,
        precision: str,
        form: Form,
        work: Callable[[], object],
        images: int,
        plain: float | None,
        ideal: float | None,
    ) -> Measurement:
        """Times work on `images` images of each of the runs; `ideal` is the time of its matrix products."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        began = now(self.device)
        work()
        start = now(self.device) - began
        each = seconds_each(work, self.device, self.budget) / form.runs
        return Measurement(
            what,
            precision,
            str(form),
            round(start, 3),
            round(1000 * each, 4),
            round(images / each, 1),
            round(plain / (1000 * each), 2) if plain else 1.0,
            round(ideal / each, 4) if ideal else None,
            round(peak_memory(self.device) / 2**30, 3),
        )
