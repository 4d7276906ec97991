"""Between the start and the end of a training: accuracies along the line that joins their weights.

    theta(alpha) = (1 - alpha) theta_0 + alpha theta_1

theta_0 are the initial weights, for a pre-trained network those of the pre-training with a new classifier; theta_1 are
the trained ones. Points between them often do better on domains that were not trained on.

Paper: WiSE-FT, Wortsman et al. 2022, https://arxiv.org/abs/2109.01903. There the start has a classifier of its own
(CLIP's zero-shot); here it is random, unless the run has trained it first on frozen features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.core.provenance import device_name
from domainwise.core.table import Bold, Table, Tabular
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.data.images import progress
from domainwise.engine.devices import pick_device
from domainwise.engine.evaluation import Split, evaluate, splits_to_evaluate
from domainwise.engine.execution.isolation import RunContext
from domainwise.engine.restore import TrainedRun, finished
from domainwise.engine.session import Session
from domainwise.models.averages import between, load_average
from domainwise.models.fit import make_model, training_summary
from domainwise.models.folder import CARD, load_model
from domainwise.models.model import Model
from domainwise.models.unseen import LAST
from domainwise.protocol.records import Record, SplitScores
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.saved_weights import RULE, saved_weights
from domainwise.protocol.selection import training_domain_score
from domainwise.sweeps.reading import read_curves

ALPHAS = tuple(i / 10 for i in range(11))
MOST = 1001
"""Points of a line at most."""
TOLERANCE = 1e-4
"""By how much the first loss may differ from the recorded one, relative to it where it exceeds 1."""


@dataclass(frozen=True)
class FineTuning:
    """A training that has ended: its run, the weights of its end, and where its records are, if they are known."""

    run: Run
    end: Mapping[str, Tensor]
    words: str
    """Of which step the weights of the end are."""
    selected: bool
    seconds: float = 0.0
    """How long it took."""
    folder: RunFolder | None = None


@dataclass(frozen=True)
class WeightsPoint:
    """One point of the line, and its accuracies and losses."""

    alpha: float
    scores: Mapping[Split, SplitScores]
    validation: float | None
    """The mean accuracy on held-out samples of the training domains."""

    def accuracy(self, part: Split) -> float:
        return self.scores[part].accuracy


@dataclass(frozen=True, repr=False)
class Interpolation(Tabular):
    """Accuracies between the start and the end of a training, and the model at any of its points."""

    tuning: FineTuning
    points: tuple[WeightsPoint, ...]
    rebuilt: TrainedRun
    """The training before its first step; its algorithm is given the weights of points."""
    start: Mapping[str, Tensor]
    verified: str
    """Whether the start is known to be that of the training, in words."""

    @property
    def run(self) -> Run:
        return self.tuning.run

    @property
    def parts(self) -> list[Split]:
        """The domains and splits that are shown: held-out samples of training domains, `in` of the others."""
        shown = self.points[0].scores
        return [part for part in shown if part[1] == ("out" if part[0] in self.run.train_domains else "in")]

    @property
    def best(self) -> WeightsPoint | None:
        """By training-domain validation, which looks at no unseen domain; ties go to the trained weights.

        None where nothing was held out.
        """
        known = [point for point in self.points if point.validation is not None]
        return max(known, key=lambda point: (point.validation or 0.0, point.alpha), default=None)

    def as_table(self) -> Table:
        headings = ("alpha", *(self._heading(domain) for domain, _ in self.parts), "validation")
        chosen = self.best
        rows = []
        for point in self.points:
            cells = [f"{100 * point.accuracy(part):.1f}" for part in self.parts]
            validation = "" if point.validation is None else f"{100 * point.validation:.1f}"
            rows.append((f"{point.alpha:g}", *cells, Bold(validation) if point is chosen else validation))
        caption = f"0: the start, {self.verified}; 1: {self.tuning.words}; validation: mean over the training domains"
        return Table(headings, rows, f"{self.run}: accuracy between start and end, per cent", caption)

    def _heading(self, domain: str) -> str:
        return f"{domain} ({'unseen' if domain in self.run.test_domains else 'held out'})"

    def to_records(self) -> list[dict[str, Any]]:
        return [
            {"alpha": point.alpha, "domain": domain, "split": split, **score._asdict()}
            for point in self.points
            for (domain, split), score in point.scores.items()
        ]

    def as_json(self) -> dict[str, Any]:
        points = [{"alpha": point.alpha, "validation": point.validation} for point in self.points]
        best = None if self.best is None else self.best.alpha
        facts = {"run": self.run.id, "start": self.verified, "end": self.tuning.words, "best": best}
        return facts | {"points": points, "accuracies": self.to_records()}

    @property
    def sentence(self) -> str:
        """Which point training-domain validation prefers."""
        if self.best is None:
            return "Nothing was held out of the training domains: no point is chosen."
        end = self.points[-1]
        beside = "" if self.best is end else f", against {100 * (end.validation or 0):.1f} % at {end.alpha:g}"
        reached = f"{100 * (self.best.validation or 0):.1f} %{beside}"
        return f"Training-domain validation prefers alpha {self.best.alpha:g}: {reached}."

    def model(self, alpha: float | None = None, device: str = "auto") -> Model:
        """The model at a point of the line, by default at the one that validation prefers."""
        best = self.best
        if alpha is None and best is None:
            raise UserError("no samples were held out to select a point: give one between 0 and 1", argument="alpha")
        point = best if alpha is None else next((one for one in self.points if one.alpha == alpha), None)
        if point is None:
            shown = ", ".join(f"{one.alpha:g}" for one in self.points)
            raise UserError(f"alpha {alpha:g} was not evaluated (those were: {shown})", argument="alpha")
        run, step = self.run, self.run.steps - 1
        records = [Record.of(run.id, step, part, score, 0.0) for part, score in point.scores.items()]
        chosen = f"chosen by {RULE} validation" if alpha is None else "chosen by hand"
        made = {
            "words": f"alpha {point.alpha:g} between the start (0) and the end (1: {self.tuning.words}), {chosen}",
            "alpha": point.alpha,
            "start": self.verified,
        }
        rule = RULE if self.tuning.selected else LAST
        environments, seconds = self.rebuilt.environments, self.tuning.seconds
        summary = training_summary(run, environments, records, seconds, rule) | {"made_of": made}
        _load(self.rebuilt, self.start, self.tuning.end, point.alpha)
        return make_model(run, environments, self.rebuilt.algorithm.state_dict(), summary, device)


def interpolate(
    trained: Path | str,
    *,
    alphas: Sequence[float] = ALPHAS,
    save: str = "auto",
    device: str = "auto",
    data_root: Path | None = None,
    environments: Environments | None = None,
) -> Interpolation:
    """Accuracies between the initial and the trained weights of a run, on its data.

    `trained` is the folder of a run, or of a model that knows its run. The start is rebuilt as the training built it,
    and where possible verified: its first step must have the loss that was recorded. The end has the weights that
    `save` names (see `protocol.saved_weights`). `environments` are the run's data, where its name does not load it.
    """
    values = _checked(alphas)
    tuning = _fine_tuning(Path(trained), save)
    run, chosen = tuning.run, pick_device(device)
    data = environments or find_dataset(run.dataset).load(data_root, run.image_size)
    with RunContext(chosen, run.precision, run.threads):
        session = Session(run, data, chosen, data_root)
        start = {name: value.detach().cpu().clone() for name, value in session.algorithm.state_dict().items()}
        verified = _verified(session, tuning)
        rebuilt = TrainedRun(run, session.environments, session.algorithm, Path(trained))
        splits = splits_to_evaluate(run, session.environments)
        points = []
        with progress.show("points between start and end", len(values)) as advance:
            for alpha in values:
                _load(rebuilt, start, tuning.end, alpha)
                scores = evaluate(session.algorithm, session.environments, splits, run.train_domains)
                accuracy = {part: one.accuracy for part, one in scores.items()}
                points.append(WeightsPoint(alpha, scores, training_domain_score(run, accuracy)))
                advance(1)
    return Interpolation(tuning, tuple(points), rebuilt, start, verified)


def _load(rebuilt: TrainedRun, start: Mapping[str, Tensor], end: Mapping[str, Tensor], alpha: float) -> None:
    """Start and end are as they were, statistics included."""
    if 0 < alpha < 1:
        load_average(rebuilt, between(start, end, alpha))
    else:
        rebuilt.algorithm.load_state_dict(dict(end if alpha else start))


def _checked(alphas: Sequence[float]) -> list[float]:
    """In order, each once."""
    if not alphas or len(alphas) > MOST:
        raise UserError(f"give 1 to {MOST} points between 0 (the start) and 1 (the end)", argument="alphas")
    for alpha in alphas:
        if not 0 <= alpha <= 1:
            raise UserError(f"alpha {alpha:g} is not between 0 (the start) and 1 (the end)", argument="alphas")
    return sorted({float(alpha) for alpha in alphas})


def _fine_tuning(path: Path, save: str) -> FineTuning:
    if (path / "run.json").exists():
        done = finished(path)
        weights = saved_weights(done, save)
        seconds = max((curve.seconds or 0.0 for curve in read_curves(done)), default=0.0)
        return FineTuning(done.run, weights.tensors, str(weights), weights.selected, seconds, done)
    if not (path / CARD).exists():
        raise UserError(f"{path} is neither a run nor a model: give OUT/<run id> of a training, or a model's folder")
    model = load_model(path, device="cpu")
    described = model.card.training.get("run")
    if described is None or "made_of" in model.card.training:
        raise UserError(f"{path}: {model.weights}: it has no start of its own; give the folder of a run")
    run = Run.from_description(described, path / CARD, "give the folder of its run")
    folder = RunFolder(path, run) if (path / run.id / "run.json").exists() else None
    if save != "auto":
        if folder is None:
            raise UserError(f"{path} has its own weights alone: give the folder of its run", argument="save")
        return _fine_tuning(folder.path, save)
    saved = model.card.training.get("weights") or {}
    end = {name: value.detach().clone() for name, value in model.algorithm.state_dict().items()}
    seconds = float(model.card.training.get("seconds", 0.0))
    return FineTuning(run, end, model.weights, bool(saved.get("selected")), seconds, folder)


def _verified(session: Session, tuning: FineTuning) -> str:
    """Makes the first step again, whose loss is that of the initial weights on the first batch, and compares it."""
    records, status = tuning.folder.read() if tuning.folder is not None else ([], None)
    recorded = next((record.training_loss for record in records if record.step == 0), None)
    if recorded is None or status is None:
        return "rebuilt (its records are not here to verify it)"
    if status.device != device_name(session.device):
        return f"rebuilt (not verified: the run was made on another device, {status.device or 'unknown'})"
    session.step()
    loss = session.take_training_loss()
    if abs(loss - recorded) > TOLERANCE * max(1.0, abs(recorded)):
        raise UserError(
            f"{tuning.run}: the rebuilt start is not that of the training (its first loss is {loss:.6g}, not "
            f"{recorded:.6g}): the data, the weights file or the software has changed since"
        )
    return "rebuilt and verified by its first loss"
