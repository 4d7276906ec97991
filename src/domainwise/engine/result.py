"""What a training returns: its records, status and folder, and the trained algorithm."""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from domainwise.algorithms.base import Algorithm
from domainwise.core.table import Table, Tabular
from domainwise.protocol.records import Record, Status
from domainwise.protocol.runs import TEST_ROWS, Run
from domainwise.protocol.selection import Curve, training_domain


@dataclass(frozen=True, repr=False)
class TrainingResult(Tabular):
    """The records, status and folder of a training, and the trained algorithm (None if it had ended before).

    `selected_step` is the evaluation that training-domain validation selects, None if no samples were held out.
    """

    run: Run
    records: list[Record]
    status: Status
    folder: Path
    algorithm: Algorithm | None
    test_rows: tuple[str, ...] = ()
    """Test domains whose samples are given as test, but come from training domains."""

    @property
    def last_evaluation(self) -> list[Record]:
        """Of the weights of the last step."""
        return self.evaluation(self.records[-1].step) if self.records else []

    @cached_property
    def selected_step(self) -> int | None:
        return self._selected("")

    @cached_property
    def selected_average(self) -> int | None:
        """The same for the averaged weights; None if the run has no average, too."""
        return self._selected(self.run.average) if self.run.average else None

    def _selected(self, average: str) -> int | None:
        curve = Curve.of(self.run, self.records, average)
        scores = training_domain(curve, "") if curve.steps else None
        return None if scores is None else curve.steps[int(scores.argmax())]

    def evaluation(self, step: int, average: str = "") -> list[Record]:
        """The records of the evaluation after a step, of its weights or of the averaged ones."""
        return [record for record in self.records if record.step == step and (record.average or "") == average]

    def as_table(self) -> Table:
        """The selected and the last evaluation, and that of averaged weights; unseen domains are marked."""
        selected = [] if self.selected_step is None else self.evaluation(self.selected_step)
        shown = {name: rows for name, rows in (("selected", selected), ("last", self.last_evaluation)) if rows}
        if selected == self.last_evaluation and selected:
            shown = {"selected and last": selected}
        if self.run.average and self.records:
            step = self.records[-1].step if self.selected_average is None else self.selected_average
            shown[self.run.average.upper()] = self.evaluation(step, self.run.average)
            shown = {name: rows for name, rows in shown.items() if rows}
        rows = []
        for records in zip(*shown.values(), strict=True):
            domain, split = records[0].domain, records[0].split
            role = "unseen" if domain in self.run.test_domains else "trained on"
            role = TEST_ROWS if domain in self.test_rows else role
            scores = [text for one in records for text in (f"{100 * one.accuracy:.1f} %", f"{one.loss:.3f}")]
            rows.append((f"{domain} ({role})", split, *scores))
        how = "no samples were held out of the training domains, so no step is selected"
        if self.selected_step is not None:
            how = f"step {self.selected_step} is selected by training-domain validation"
        steps = [f"{name}: step {records[0].step}" for name, records in shown.items()]
        headings = ("domain", "split", *(text for step in steps for text in (step, "loss")))
        early = f" ({self.status.reason})" if self.status.status == "done" and self.status.reason else ""
        caption = f"{self.status.status} after step {self.status.step}{early}; {how}"
        return Table(headings, rows, str(self.run), caption, labels=2)

    def to_records(self) -> list[dict[str, Any]]:
        return [asdict(record) for record in self.records]
