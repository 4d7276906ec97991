"""Load weights from a file into a network, without executing code from the file."""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from domainwise.core.errors import UserError
from domainwise.core.weights_file import load_weights
from domainwise.nets.backbones import Backbone
from domainwise.nets.weights import locate
from domainwise.protocol.run_folder import FROZEN

SUFFIXES = (".safetensors", ".pth", ".pt")
OPTIONAL = "num_batches_tracked"
HEAD = "fc."
TRAINED = "network.features."
"""Prefix of the features' keys in a model.safetensors of this package."""


def start_from(features: nn.Module, reference: str, root: Path | None = None) -> None:
    """Copies a run's weights, those of a file or of a hub's backbone, into its feature network."""
    path = locate(reference, root)
    if isinstance(features, Backbone) and path.is_dir():
        features.load(path)
    else:
        fill(features, read(path), path)


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, .pth or .pt file, by name. A pickle that would execute code is refused."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: weights are read from files ending in {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".safetensors":
            return load_weights(path, "give another file", folder=path.parent.parent / FROZEN)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} holds more than tensors, or is damaged; it is not opened, since unpickling could execute code: "
            "save the model's state_dict() as .safetensors"
        ) from None
    except (RuntimeError, ValueError, EOFError, OSError) as error:
        raise UserError(f"{path} cannot be read as weights: {str(error).splitlines()[0]}") from None
    tensors = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise UserError(f"{path} is not a dictionary of tensors: save the model's state_dict()")
    return tensors


def fill(features: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copies tensors into a network, cast to its dtype. Keys and shapes must agree; a classifier's are left out."""
    if any(key.startswith(TRAINED) for key in tensors):
        tensors = {key.removeprefix(TRAINED): value for key, value in tensors.items() if key.startswith(TRAINED)}
    expected = features.state_dict()
    loaded = {key: value for key, value in tensors.items() if not key.startswith(HEAD)}
    missing = [key for key in expected if key not in loaded and not key.endswith(OPTIONAL)]
    unknown = [key for key in loaded if key not in expected]
    misshapen = [
        f"{key} {list(loaded[key].shape)} instead of {list(value.shape)}"
        for key, value in expected.items()
        if key in loaded and loaded[key].shape != value.shape
    ]
    problems = [
        f"{len(keys)} {'key' if len(keys) == 1 else 'keys'} {kind} ({_few(keys)})"
        for kind, keys in (("missing", missing), ("unknown", unknown), ("of another shape", misshapen))
        if keys
    ]
    if problems:
        raise UserError(f"{path} does not fit {type(features).__name__}: {'; '.join(problems)}")
    features.load_state_dict(loaded, strict=False)


def _few(keys: Sequence[str], most: int = 3) -> str:
    return ", ".join(keys[:most]) + (", ..." if len(keys) > most else "")
