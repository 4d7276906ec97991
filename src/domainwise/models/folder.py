"""Save and load a model as a folder: model.safetensors, reference.safetensors, trained_on.safetensors and model.json.

Loading executes no code from the folder: weights are plain tensors and the network is built from its registered name.
model.json holds digests of the other files and a checksum of itself, so that a damaged or exchanged file is an error.
Reference features are stored by the number of their domain, since a domain may have any name. Models of earlier
versions have no trained_on.safetensors, the fingerprints of their training samples.
"""

from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.engine.devices import pick_device
from domainwise.models.card import Card, digest
from domainwise.models.model import Model, StateDict

CARD, WEIGHTS, REFERENCE = "model.json", "model.safetensors", "reference.safetensors"
TRAINED_ON, FINGERPRINTS = "trained_on.safetensors", "fingerprints"


def save(model: Model, folder: Path) -> Path:
    """Writes the card last: a folder without one is not a model."""
    files.writable_folder(folder)
    numbers = {domain: str(number) for number, domain in enumerate(model.domains)}
    reference = {numbers[domain]: features for domain, features in model.reference.items()}
    parts = {WEIGHTS: _pack(model.algorithm.state_dict()), REFERENCE: _pack(reference)}
    if model.trained_on is not None:
        parts[TRAINED_ON] = _pack({FINGERPRINTS: model.trained_on})
    for name, data in parts.items():
        with files.atomic(folder / name) as file:
            file.write(data)
    with files.atomic(folder / CARD) as file:
        file.write(model.card.write({name: digest(data) for name, data in parts.items()}))
    return folder


def load_model(folder: Path | str, *, device: str = "auto") -> Model:
    """The model that `Model.save`, `fit(out=...)` or `domainwise train` has written to a folder."""
    pick_device(device)
    folder = Path(folder)
    if not (folder / CARD).exists():
        raise UserError(f"{folder} is no model (it has no {CARD}): give a folder that fit, train or save has written")
    card, digests = Card.read(_read(folder / CARD), str(folder / CARD))
    weights, reference = (_unpack(folder / name, digests.get(name)) for name in (WEIGHTS, REFERENCE))
    trained_on = _unpack(folder / TRAINED_ON, digests[TRAINED_ON]).get(FINGERPRINTS) if TRAINED_ON in digests else None
    numbered = {domain: reference[str(n)] for n, domain in enumerate(card.domains) if str(n) in reference}
    try:
        return Model(card, weights, numbered, device, trained_on)
    except UserError as error:
        raise UserError(f"{folder} cannot be loaded: {error}") from None
    except (RuntimeError, MemoryError, ValueError, TypeError, OverflowError, AttributeError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{folder}: {WEIGHTS} does not fit {CARD} ({reason}): train the model again") from None


def _pack(tensors: StateDict) -> bytes:
    return safetensors.torch.save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def _unpack(file: Path, expected: str | None) -> dict[str, Tensor]:
    data = _read(file)
    if digest(data) != expected:
        raise UserError(f"{file} is damaged or belongs to another model: restore it or train the model again")
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except SafetensorError as error:
        raise UserError(f"{file} holds no weights ({error}): train the model again") from None
    return tensors


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): restore it or train the model again") from None
