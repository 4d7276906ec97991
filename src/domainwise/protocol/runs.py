"""A Run: the frozen description of one training, whose hash is its identity."""

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

from domainwise.core import deprecation
from domainwise.core.errors import UserError
from domainwise.core.parsing import Count, FilePath, Fraction, OneOf, Positive, Range, check, parse_any, read_file
from domainwise.protocol.averages import AVERAGES
from domainwise.protocol.balance import BALANCES, ClassWeights
from domainwise.protocol.dataset_names import title
from domainwise.protocol.limits import THREADS
from domainwise.protocol.network_names import network_title
from domainwise.protocol.recipe import CONSTANT, FREEZABLE, LR_SCHEDULES, STARTS
from domainwise.protocol.spaces import HParams

PRECISIONS = ("fp32", "tf32", "bf16")
"""fp32 is strict; tf32 rounds the factors of products to 10 bits (GPUs only); bf16 computes the network in bfloat16."""
TEST_ROWS = "test rows of a training domain"
"""What rows given as test are whose domain was trained on, in words: not unseen."""
HELD_OUT = 0.2
"""The fraction of a domain that is its `out` split."""
TRACKABLE = ("penalties",)
"""Quantities that a run may record besides accuracies, at every evaluation."""

Combination = Literal["", "uniform soup", "greedy soup", "ensemble"]
"""How finished runs become one model: by averaging weights, of all or of chosen ones, or probabilities."""
COMBINATIONS: dict[Combination, tuple[str, str]] = {
    "uniform soup": ("soup", "uniform of"),
    "greedy soup": ("soup", "greedy of"),
    "ensemble": ("ensemble", "of"),
}
"""{combination: (what it is called, how it is made of its members)}."""

CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
"""The one way to write a description that is hashed."""
RECIPE = (
    "start",
    "freeze",
    "train",
    "layer_decay",
    "lr_schedule",
    "early_stop",
    "clip_gradient",
    "balance",
    "class_weights",
)
"""The fields of a Run that change its training, not what it is trained on."""
FORMAT = 2
"""Raised when a Run's fields change meaning; part of its identity."""


def added(default: Any) -> Any:
    """A field added after runs, or plans, were published: at its default descriptions and identities leave it out."""
    return field(default=default, metadata={"added": True})


class WeightsReference(NamedTuple):
    """A weights file and the first 16 digits of its SHA-256; a Run writes both as "file#fingerprint"."""

    file: str
    fingerprint: str

    @classmethod
    def parse(cls, text: str) -> "WeightsReference":
        file, _, fingerprint = text.rpartition("#")
        return cls(file, fingerprint)

    def __str__(self) -> str:
        return f"{self.file}#{self.fingerprint}"


@dataclass(frozen=True)
class Run:
    """Everything that decides a training's result. `domainwise.plan` makes one: it fills in defaults and checks.

    A run of the setting "multi" belongs to a table of domains left out in turn, one of "single" to a table of training
    on one domain and testing on each other. `draw` numbers the draws of a sweep or the candidates of a comparison;
    `variant` names the search where one algorithm is searched in several spaces. `weights` is the file that a
    pre-trained network starts from, as "file#fingerprint": the fingerprint (the first 16 digits of the file's SHA-256)
    is part of the run's identity, the path is not. With `full_curves` every split is evaluated, not only those that
    selection rules need. `threads` is the number of CPU threads: sums depend on it in their last bits, which training
    amplifies. With an `average` (see `protocol.averages`) the averaged weights are evaluated besides the last ones.
    With `shared_start` every draw starts from the initial weights of draw 0, so that weights of different draws can be
    averaged. The fields named in RECIPE are the recipe (see `protocol.recipe` and `protocol.balance`). A `network` that
    is a folder counts by its name and content, not by its path.

    A run with a `combination` is not trained: it describes a model made of the `members`, the identities of runs that
    ended. It has the settings that they share, the hyper-parameters of the first and draw 0.
    """

    dataset: FilePath
    algorithm: str
    train_domains: tuple[str, ...]
    test_domains: tuple[str, ...]
    hparams: HParams
    network: str
    steps: Positive
    evaluate_every: Positive
    draw: Count = 0
    trial: Count = 0
    seed: int = 0
    precision: Annotated[str, OneOf(PRECISIONS)] = "fp32"
    track: tuple[str, ...] = ()
    validation_domains: tuple[str, ...] = ()
    held_out: Fraction = HELD_OUT
    setting: str = "multi"
    variant: str = ""
    weights: FilePath = ""
    augmentation: str = "none"
    image_size: Count = 0
    full_curves: bool = False
    format: int = FORMAT
    threads: Annotated[int, Range(1, THREADS)] = added(1)
    average: Annotated[str, OneOf(("", *AVERAGES))] = added("")
    shared_start: bool = added(False)
    start: Annotated[str, OneOf(("", *STARTS))] = added("")
    freeze: Annotated[str, OneOf(("", *FREEZABLE))] = added("")
    lr_schedule: Annotated[str, OneOf(LR_SCHEDULES)] = added(CONSTANT)
    early_stop: Count = added(0)  # noqa: RUF009 (as the others, whose types ruff knows)
    clip_gradient: Annotated[float, Range(0)] = added(0.0)
    combination: Combination = added("")  # noqa: RUF009 (as above)
    members: tuple[str, ...] = added(())
    train: str = added("")
    layer_decay: Fraction = added(1.0)  # noqa: RUF009 (as above)
    balance: Annotated[str, OneOf(("", *BALANCES))] = added("")
    class_weights: ClassWeights = added(())  # noqa: RUF009 (as above)

    @classmethod
    def plan(cls, *args: Any, **kwargs: Any) -> "Run":
        """The former name of `domainwise.plan`."""
        import domainwise

        deprecation.warn("Run.plan", "domainwise.plan")
        return domainwise.plan(*args, **kwargs)

    def describe(self) -> dict[str, Any]:
        """As plain JSON values."""
        values = vars(self)
        left_out = {
            name for name, default in _added_fields(cast(Hashable, type(self))).items() if values[name] == default
        }
        return {name: values[name] for name in _field_names(cast(Hashable, type(self))) if name not in left_out}

    @classmethod
    def from_description(cls, description: Any, where: object = "a run", advice: str = "plan it again") -> "Run":
        """The run that JSON values describe, checked; `where` says where they come from."""
        if isinstance(description, dict) and (known := description.get("format")) != FORMAT:
            shown = check(known, Any, where, advice)
            raise UserError(f"{where}: a run of format {shown!r}; this version reads format {FORMAT}")
        return check(description, cls, where, advice)

    @classmethod
    def read(cls, file: Path | str) -> "Run":
        """The run of a run.json; one that is not there is a FileNotFoundError."""
        advice = "restore it or train again"
        return cls.from_description(parse_any(read_file(file, advice), file, advice), file, advice)

    @cached_property
    def id(self) -> str:
        """The identity: equal for equal descriptions, in any process, on any machine."""
        return identity(self.describe())

    @cached_property
    def training_id(self) -> str:
        """The identity without the average: runs that share it train the same weights."""
        return replace(self, average="").id if self.average else self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def recipe(self) -> dict[str, Any]:
        """The fields of its recipe that differ from their defaults."""
        values, defaults = vars(self), _added_fields(cast(Hashable, type(self)))
        return {name: values[name] for name in RECIPE if values[name] != defaults[name]}

    @property
    def domains(self) -> tuple[str, ...]:
        """All domains whose samples are read."""
        return (*self.train_domains, *self.validation_domains, *self.test_domains)

    @property
    def combined(self) -> str:
        """How it is made of several runs: "soup (uniform of 6)", or "+ SMA soup (uniform of 6)" of averaged weights.

        Empty for a run that is trained.
        """
        if not self.combination:
            return ""
        kind, rule = COMBINATIONS[self.combination]
        average = f"+ {self.average.upper()} " if self.average else ""
        return f"{average}{kind} ({rule} {len(self.members)})"

    def held_out_of(self, domain: str) -> float:
        """The fraction of a domain that is its `out` split; a validation domain is evaluated as a whole."""
        return 0.0 if domain in self.validation_domains else self.held_out

    def evaluated_at(self, step: int) -> bool:
        """Whether there is an evaluation after this step: every `evaluate_every`th from the first, and the last."""
        return step % self.evaluate_every == 0 or step == self.steps - 1

    def __str__(self) -> str:
        unseen = "+".join(self.test_domains) or "none"
        made = f"{self.algorithm} {self.combined}" if self.combination else self.algorithm
        return f"{made} on {title(self.dataset)}, unseen {unseen}, trial {self.trial}"


def identity(description: Mapping[str, Any]) -> str:
    """That of the run with this description; paths count by the content of what they name."""
    described = {
        **description,
        "weights": WeightsReference.parse(str(description.get("weights", ""))).fingerprint,
        "network": network_title(str(description.get("network", ""))),
    }
    text = CANONICAL.encode(described)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _field_names(kind: Hashable) -> tuple[str, ...]:
    return tuple(one.name for one in fields(cast(type[Run], kind)))


@cache
def _added_fields(kind: Hashable) -> dict[str, Any]:
    return {one.name: one.default for one in fields(cast(type[Run], kind)) if one.metadata.get("added")}
