"""Save and load a model as a folder: model.safetensors, reference.safetensors, trained_on.safetensors and model.json.

Loading executes no code from the folder: weights are plain tensors and the network is built from its registered name.
model.json holds digests of the other files and a checksum of itself, so that a damaged or exchanged file is an error.
Reference features are stored by the number of their domain, since a domain may have any name. Models of earlier
versions have no trained_on.safetensors, the fingerprints of their training samples. A calibrated model has
calibration.safetensors, its predictions for the calibration samples. README.md is for people, who may edit it: nothing
reads it, and no digest covers it.
"""

from pathlib import Path

from torch import Tensor

from domainwise.core import files
from domainwise.core.errors import UserError, one_line
from domainwise.core.parsing import read_file
from domainwise.core.weights_file import load_weights, save_weights
from domainwise.engine.devices import pick_device
from domainwise.models.card import ADVICE, Card, digest
from domainwise.models.decisions import outcome_tensors, read_outcomes
from domainwise.models.model import Model, check_sizes
from domainwise.models.readme import write_readme

CARD, WEIGHTS, REFERENCE = "model.json", "model.safetensors", "reference.safetensors"
CALIBRATION, README = "calibration.safetensors", "README.md"
TRAINED_ON, FINGERPRINTS = "trained_on.safetensors", "fingerprints"
LARGEST_FILE = 1 << 38
"""Bytes of weights."""


def save(model: Model, folder: Path) -> Path:
    """Replaces all files of the model that is there, if there is one, or none: cards name the digests of the others."""
    files.writable_folder(folder)
    numbers = {domain: str(number) for number, domain in enumerate(model.domains)}
    reference = {numbers[domain]: features for domain, features in model.reference.items()}
    parts = {WEIGHTS: model.algorithm.state_dict(), REFERENCE: reference}
    if model.trained_on is not None:
        parts[TRAINED_ON] = {FINGERPRINTS: model.trained_on}
    if model.outcomes:
        parts[CALIBRATION] = outcome_tensors(model.outcomes)
    with files.replaced_together(folder) as staged:
        for name, tensors in parts.items():
            save_weights(staged / name, tensors)
        digests = {name: digest((staged / name).read_bytes()) for name in parts}
        files.write(staged / CARD, model.card.write(digests))
    write_readme(folder / README, model.card)
    return folder


def load_model(folder: Path | str, *, device: str = "auto") -> Model:
    """The model that `Model.save`, `fit(out=...)` or `domainwise train` has written to a folder."""
    pick_device(device)
    folder = Path(folder)
    files.complete_replacement(folder)
    if not (folder / CARD).exists():
        raise UserError(f"{folder} is no model (it has no {CARD}): give a folder that fit, train or save has written")
    card, digests = Card.read(_read(folder / CARD), str(folder / CARD))
    weights, reference = (_load(folder / name, digests.get(name)) for name in (WEIGHTS, REFERENCE))
    trained_on = _load(folder / TRAINED_ON, digests[TRAINED_ON]).get(FINGERPRINTS) if TRAINED_ON in digests else None
    outcomes = {}
    if card.calibration is not None:
        tensors = _load(folder / CALIBRATION, digests.get(CALIBRATION))
        outcomes = read_outcomes(tensors, card.calibration.domains, folder / CALIBRATION)
    numbered = {domain: reference[str(n)] for n, domain in enumerate(card.domains) if str(n) in reference}
    try:
        check_sizes(card, weights)
        return Model(card, weights, numbered, device, trained_on, outcomes)
    except UserError as error:
        raise UserError(f"{folder} cannot be loaded: {error}") from None
    except (RuntimeError, MemoryError, ValueError, TypeError, OverflowError, AttributeError, IndexError) as error:
        reason = one_line(error)
        raise UserError(f"{folder}: {WEIGHTS} does not fit {CARD} ({reason}): train the model again") from None


def _load(file: Path, expected: str | None) -> dict[str, Tensor]:
    if digest(_read(file)) != expected:
        raise UserError(f"{file} is damaged or belongs to another model: {ADVICE}")
    return load_weights(file, ADVICE)


def _read(file: Path) -> bytes:
    try:
        return read_file(file, ADVICE, LARGEST_FILE)
    except FileNotFoundError:
        raise UserError(f"{file} is missing: {ADVICE}") from None
