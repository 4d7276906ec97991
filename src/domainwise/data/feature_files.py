"""Write features for other tools: a folder that names a dataset here, a Parquet table, or a safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domainwise.core import files
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.data.environments import Environments

SUFFIXES = (".parquet", ".safetensors")


def check_target(path: Path) -> None:
    """Raises UserError if features cannot be written there, before any is computed; makes the path's folder."""
    if path.suffix and path.suffix not in SUFFIXES:
        raise UserError(f"{path}: name a folder, or a file that ends in {' or '.join(SUFFIXES)}", argument="out")
    if path.suffix == ".parquet":
        _pyarrow()
    if path.suffix:
        files.writable_file(path)
    else:
        files.writable_folder(path)


def write_features(data: Environments, path: Path) -> Path:
    """Writes vectors with their labels and domains in the format that the path's ending names; else to a folder."""
    if path.suffix == ".parquet":
        _write_parquet(data, path)
    elif path.suffix == ".safetensors":
        _write_safetensors(data, path)
    else:
        from domainwise.data.sources.saved import save_environments

        save_environments(data, path)
    return path


def _domain_numbers(data: Environments) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.repeat(np.arange(len(data.sizes)), list(data.sizes.values()))


def _write_parquet(data: Environments, path: Path) -> None:
    """Columns domain and label (names) and features (a list of numbers)."""
    pa = _pyarrow()
    import pyarrow.parquet

    numbers = np.ascontiguousarray(data.images.cpu().numpy(), np.float32)
    named = {
        "domain": pa.DictionaryArray.from_arrays(_domain_numbers(data), list(data.domains)),
        "label": pa.DictionaryArray.from_arrays(data.labels.cpu().numpy(), list(data.classes)),
        "features": pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), numbers.shape[1]),
    }
    with files.atomic(path) as file:
        pyarrow.parquet.write_table(pa.table(named), file)


def _write_safetensors(data: Environments, path: Path) -> None:
    """Tensors features [N, F], labels [N] and domains [N]; the metadata name classes and domains, as JSON."""
    import torch
    from safetensors.torch import save

    tensors = {
        "features": data.images.float().cpu().contiguous(),
        "labels": data.labels.cpu().contiguous(),
        "domains": torch.from_numpy(_domain_numbers(data)),
    }
    metadata = {"name": data.name, "classes": json.dumps(data.classes), "domains": json.dumps(data.domains)}
    files.write(path, save(tensors, metadata))


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UserError("Parquet files need pyarrow: pip install 'domainwise[tables]'", argument="out") from None
    return pyarrow
