"""Audits of every model of a sweep that a selection rule chose, kept with the records of their runs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from domainwise.analysis.audit import Audit, audit
from domainwise.analysis.choose import Wanted
from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.engine.restore import restore
from domainwise.protocol.dataset_names import means
from domainwise.protocol.records import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import RULES, Choice, searches, select
from domainwise.sweep.collection import Collection, collect


@dataclass(frozen=True)
class SelectedAudit:
    """A run, what each rule chose of it, and what its model, that of the last step, was found to use."""

    run: Run
    choices: Mapping[str, Choice]
    found: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        run = self.run
        chosen = {rule: {"step": choice.step, "accuracy": choice.accuracy} for rule, choice in self.choices.items()}
        facts = {"run": run.id, "algorithm": run.algorithm, "unseen": list(run.test_domains)}
        return facts | {"draw": run.draw, "trial": run.trial, "chosen": chosen, **self.found}

    def __str__(self) -> str:
        rules = ", ".join(f"{rule} ({100 * choice.accuracy:.1f} %)" for rule, choice in self.choices.items())
        return f"{self.run}, draw {self.run.draw}: chosen by {rules}. {self.found['sentence']}"


def selected_runs(collection: Collection, wanted: Wanted) -> dict[Run, dict[str, Choice]]:
    """{run: {rule: its choice}} of every run that some rule chose for its unseen domain and trial."""
    found: dict[Run, dict[str, Choice]] = {}
    for curves in collection.experiments().values():
        for (_, _, unseen, trial), draws in searches(curves).items():
            named = wanted.dataset is None or means(wanted.dataset, draws[0].run.dataset)
            if named and wanted.fits(unseen, trial):
                for rule in RULES:
                    if choice := select(draws, unseen, rule):
                        found.setdefault(choice.run, {})[rule] = choice
    return found


def audit_selected(folder: Path, wanted: Wanted, data_root: Path | None, device: str) -> Iterator[SelectedAudit]:
    """Audits the selected models that were not audited before; runs whose models are gone are passed over."""
    any_found = False
    data: dict[tuple[str, int], Environments] = {}
    for run, choices in selected_runs(collect(folder), wanted).items():
        kept = RunFolder(folder, run)
        found = kept.read_audit()
        if found is None and kept.model_file.is_file():
            known = data.get((run.dataset, run.image_size))
            trained = restore(kept.path, data_root=data_root, device=device, environments=known)
            data = {(run.dataset, run.image_size): trained.environments}
            found = _short(audit(trained, data_root))
            kept.save_audit(found)
        if found is not None:
            any_found = True
            yield SelectedAudit(run, choices, found)
    if not any_found:
        raise UserError(f"{folder}: no run there was chosen by a rule and has kept its model")


def _short(found: Audit) -> dict[str, Any]:
    """What is kept of an audit: accuracies, the commonest answer, the probe, the dataset's own question."""
    return {
        "accuracy": {score.domain: score.accuracy for score in found.scores},
        "commonest": asdict(found.commonest),
        "probe": None if found.probe is None else {"accuracy": found.probe.accuracy, "chance": found.probe.chance},
        "shortcut": None if found.use is None else asdict(found.use),
        "sentence": found.sentences[0] if found.sentences else "",
    }
