"""The names of backbones that other libraries define: hf:NAME and timm:NAME, of a hub or of a local folder.

hf:facebook/dinov2-base                       transformers, from the Hugging Face hub or its cache
hf:facebook/dinov2-base@1a2b3c4               the same at a revision: a commit, tag or branch
hf:facebook/dinov2-base+mean                  the same with other features: see `Pooling`
hf:./my-dinov2                                a folder with config.json and model.safetensors
timm:vit_base_patch16_224.augreg_in21k        timm
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from domainwise.core import files
from domainwise.core.errors import UserError, unknown

Library = Literal["hf", "timm"]
Pooling = Literal["", "class", "mean", "both", "pooler"]
"""What the features are: the class token, the mean of patches or positions, both beside each other, or what the model's
own pooling layer makes; empty: the class token where there is one, else the model's own."""

PREFIXES = tuple(f"{library}:" for library in get_args(Library))
POOLINGS = tuple(pooling for pooling in get_args(Pooling) if pooling)
REPOSITORY = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)
REVISION = re.compile(r"(?!.*\.\.)[\w./-]{1,200}", re.ASCII)


def is_hub(network: str | None) -> bool:
    """Whether a network is a backbone of another library."""
    return (network or "").startswith(PREFIXES)


@dataclass(frozen=True)
class HubName:
    """The parts of such a name; `source` is a repository of the hub, a timm model, or an absolute path."""

    library: Library
    source: str
    revision: str = ""
    pooling: Pooling = ""

    @classmethod
    def parse(cls, name: str) -> "HubName":
        """The parts of a name; one that cannot be a backbone is a UserError. Opens no file."""
        library, _, rest = name.partition(":")
        if library not in get_args(Library) or not rest or "\0" in name:
            raise UserError(f"{name!r} names no backbone: write hf:NAME or timm:NAME", argument="network")
        source, plus, pooling = rest.rpartition("+")
        if rest.startswith((".", "/", "~")) or Path(rest).is_absolute():
            if pooling not in POOLINGS:  # a folder may be called anything
                source, pooling = rest, ""
            return cls(library, str(files.resolved(source)), "", pooling)  # type: ignore[arg-type]
        source, at, revision = (source if plus else rest).partition("@")
        if not REPOSITORY.fullmatch(source) or (at and not REVISION.fullmatch(revision)):
            raise UserError(
                f"{name!r} is neither a name of the hub nor a folder, which begins with ./ or /", argument="network"
            )
        if plus and pooling not in POOLINGS:
            raise unknown("pooling", pooling, POOLINGS)
        return cls(library, source, revision, pooling if plus else "")  # type: ignore[arg-type]

    @property
    def folder(self) -> Path | None:
        """The folder, if it is a local one."""
        return Path(self.source) if Path(self.source).is_absolute() else None

    @property
    def repository(self) -> str:
        """The repository of the hub; that of a timm model belongs to timm."""
        return f"timm/{self.source}" if self.library == "timm" and "/" not in self.source else self.source

    @property
    def title(self) -> str:
        """The name without the path of a folder."""
        return str(self) if self.folder is None else str(replace(self, source=self.folder.name))

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.library}:{self.source}{revision}{f'+{self.pooling}' if self.pooling else ''}"


def full_name(network: str) -> str:
    """The name with the absolute path of a folder: the same in every process, wherever it works."""
    return str(HubName.parse(network)) if is_hub(network) else network


def network_title(network: str) -> str:
    """The name in tables and identities: a folder goes by its own name, as a file of weights does."""
    return HubName.parse(network).title if is_hub(network) else network
