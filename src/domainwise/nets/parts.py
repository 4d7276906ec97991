"""Parts of a network: its blocks in a row, its attention, which of them train, and how fast.

    attention    the parameters of attention layers alone (for fine-tuning vision transformers: Touvron et al. 2022,
                 https://arxiv.org/abs/2203.09795; DomainBed's `vit_attn_tune`)
    last:N       the last N blocks, and what follows them

With the layer decay d, parameters of block k of K learn with the factor d^(K + 1 - k), those before the blocks with
d^(K + 1), and those behind them, as the classifier, with 1 (Clark et al. 2020, https://arxiv.org/abs/2003.10555; as in
Bao et al. 2021, https://arxiv.org/abs/2106.08254).
"""

import re

from torch import nn

from domainwise.core.errors import UserError
from domainwise.protocol.recipe import last_blocks

ATTENTION = ("attn", "attention")
INNER = ("blocks", "layers")
"""What a stage calls the row of blocks in it."""
ROWS = (nn.Sequential, nn.ModuleList)
STAGE = re.compile(r"(layer|stage)s?_?\d+")


def blocks(features: nn.Module) -> dict[str, nn.Module]:
    """The blocks of a network by name, first to last: the row of modules that holds most of its weights.

    Where that is a row of stages, or the stages are called layer1, layer2, ..., their blocks. A network may name its
    blocks by a method `blocks()`.
    """
    named = getattr(features, "blocks", None)
    if callable(named) and not isinstance(named, nn.Module):
        given: dict[str, nn.Module] = named()
        return given
    stages = [(name, one) for name, one in features.named_children() if STAGE.fullmatch(name) and isinstance(one, ROWS)]
    if len(stages) > 1:
        return {f"{name}.{number}": block for name, stage in stages for number, block in stage.named_children()}
    most = 0.5 * _weights(features)
    rows = (
        (name, module)
        for name, module in features.named_modules()
        if isinstance(module, ROWS) and len(module) > 1 and _weights(module) > most
    )
    name, row = next(rows, ("", None))
    if row is None:
        return {}
    blocks: dict[str, nn.Module] = {}
    for part, child in row.named_children():
        path = f"{name}.{part}".lstrip(".")
        inner = next((one for one in INNER if isinstance(getattr(child, one, None), ROWS)), "")
        within = child.get_submodule(inner) if inner else None
        if within is not None and len(list(within.children())):
            blocks |= {f"{path}.{inner}.{number}": block for number, block in within.named_children()}
        elif _weights(child):
            blocks[path] = child
    return blocks


def attention_names(features: nn.Module) -> list[str]:
    """The names of the parameters of attention layers."""
    return [
        name
        for name, _ in features.named_parameters()
        if any(word in part.lower() for part in name.split(".")[:-1] for word in ATTENTION)
    ]


def train_only(features: nn.Module, part: str, network: str) -> None:
    """From now on only this part of the features ("attention", "last:N") learns; the network goes by this name."""
    if part == "attention":
        learning = set(attention_names(features))
        if not learning:
            raise UserError(f"network {network} has no attention layers: choose a vision transformer", argument="train")
    else:
        learning = set(_behind(features, last_blocks(part), network))
    for name, parameter in features.named_parameters():
        if name not in learning:
            parameter.requires_grad_(False)


def rate_factors(features: nn.Module, decay: float, network: str) -> dict[nn.Parameter, float]:
    """By what the learning rate of each parameter is multiplied, with this decay from block to block."""
    row = list(blocks(features))
    if not row:
        raise UserError(
            f"network {network} has no row of blocks, so that layer_decay has no layers", argument="layer_decay"
        )
    factors: dict[nn.Parameter, float] = {}
    reached = 0
    for name, parameter in features.named_parameters():
        inside = next((number for number, block in enumerate(row, 1) if f"{name}.".startswith(f"{block}.")), None)
        if inside is not None:
            reached = max(reached, inside)
            layer = inside
        else:  # what joins two stages belongs to the block before it
            layer = len(row) + 1 if reached == len(row) else reached
        factors[parameter] = decay ** (len(row) + 1 - layer)
    return factors


def _behind(features: nn.Module, count: int, network: str) -> list[str]:
    """The names of the parameters of the last blocks and of everything after them."""
    row = list(blocks(features))
    if not row or count > len(row):
        some = f"{len(row)} blocks" if row else "no row of blocks"
        raise UserError(f"network {network} has {some}, not {count}: train fewer", argument="train")
    names = [name for name, _ in features.named_parameters()]
    first = next(i for i, name in enumerate(names) if f"{name}.".startswith(f"{row[-count]}."))
    return names[first:]


def _weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
