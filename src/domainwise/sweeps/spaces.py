"""Search spaces besides DomainBed's: the paper's, DomainBed's of 2024, and the mild one whose runs can be averaged.

The paper's (appendix A.2 and B) are per algorithm and dataset, as exponents of ten:

tab:searchd, tab:searcha, tab:searchu    multi-source DAT, AT, UAT
tab:searchsingle                         single-source DAT
appendix text                            DAT and the learning rate on Mixed-Same

The ranges of WRM and ADA, the same for every dataset, are those of the algorithms themselves.
"""

from collections.abc import Mapping

from domainwise.protocol.spaces import Choice, Fixed, LogUniform, Parameter

Exponents = tuple[float, float]

BALLS: dict[str, dict[str, dict[str, tuple[Exponents, Exponents]]]] = {
    "multi": {
        "DAT": {
            "ColoredMNIST": ((-1, 2), (-2, 1)),
            "NICO": ((-2, -1), (-4, -3)),
            "PACS": ((-1, 2), (-2, 1)),
            "TerraIncognita": ((-0.5, 0.7), (-2, -1)),
            "MixedSame": ((-0.5, 0), (-1.5, -1)),
        },
        "AT": {
            "ColoredMNIST": ((-1, 1), (-2, 0)),
            "NICO": ((-1, 0), (-2, -1)),
            "PACS": ((-2, -1), (-3, -2)),
            "TerraIncognita": ((-1, 0), (-2, -1)),
        },
        "UAT": {
            "ColoredMNIST": ((-1, 2), (-2, 1)),
            "NICO": ((-2, -1), (-4, -3)),
            "PACS": ((-1, 2), (-2, 1)),
            "TerraIncognita": ((0, 0.5), (-2, -1)),
        },
    },
    "single": {
        "DAT": {
            "ColoredMNIST": ((-1, 2), (-2, 1)),
            "NICO": ((-2, -1), (-4, -3)),
            "PACS": ((-2, -1), (-3, -2)),
            "TerraIncognita": ((-0.5, 0.7), (-2, -1)),
            "MixedSame": ((-0.5, 0), (-1.5, -1)),
        },
    },
}
"""Ranges of (eps, alpha). Mixed-Same has a single training domain: it is in both settings."""

EVERY_ALGORITHM: dict[str, dict[str, Parameter]] = {
    "MixedSame": {"lr": LogUniform(-5.5, -4.5, default=1e-5)},
    "Digits": {"lr": Fixed(1e-4), "batch_size": Fixed(32)},
}
"""Datasets for which the paper, or on Digits the work it follows, leaves DomainBed's ranges for every algorithm."""


def paper_space(algorithm: str, dataset: str, setting: str = "multi") -> dict[str, Parameter]:
    """The paper's differences from DomainBed: overrides of the algorithm's space, often empty.

    Ensemble UAT is made of UAT models and shares their ranges. Draw 0 keeps the protocol's default where it lies in the
    paper's range, and takes the range's middle where it does not.
    """
    space: dict[str, Parameter] = {}
    ranges = BALLS[setting].get("UAT" if algorithm == "EnsembleUAT" else algorithm, {}).get(dataset)
    if ranges is not None:
        space |= {name: _log(r, default) for name, r, default in zip(("eps", "alpha"), ranges, (1.0, 0.1), strict=True)}
    return space | EVERY_ALGORITHM.get(dataset, {})


RECENT_NETWORKS = {"resnet50": "resnet50-augmix-live"}
"""DomainBed's since July 2024, where a dataset's default is another: AugMix weights and a BatchNorm that learns."""


def recent_space(algorithm: str, domains: int) -> dict[str, Parameter]:
    """Where the ranges of DomainBed since July 2024 differ from those of its published tables.

    MLDG tests on 2 training domains, or in the search on 1 or 2. Of 2 that would leave none to train on, and nothing
    would be learned: there it tests on 1.
    """
    most = max(1, min(2, domains - 1))
    return {"meta_test": Choice(tuple(range(1, most + 1)), default=most)} if algorithm == "MLDG" else {}


MILD_LR = (0.2, 0.6, 1.0)
"""Learning rates of the mild space, as factors of the default: 1e-5, 3e-5 and 5e-5 for photographs."""
MILD: dict[str, tuple[float, ...]] = {"dropout": (0.0, 0.1, 0.5), "weight_decay": (1e-4, 1e-6)}


def mild_space(space: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """DiWA's mild ranges (Rame et al. 2022, https://arxiv.org/abs/2205.09739, table 5), for weights to be averaged.

    Learning rate, dropout and weight decay take one of a few values; all else stays at its default, and draw 0 is the
    defaults. For photographs the learning rates are DiWA's, {1, 3, 5}e-5. DiWA has none for small images: there they
    are the same fractions of the default, {0.2, 0.6, 1}e-3. Learning rates of the wide search lead runs too far apart.
    """
    ranges = MILD | {"lr": tuple(float(f"{factor * space['lr'].default:.6g}") for factor in MILD_LR)}
    return {
        name: Choice(ranges[name], parameter.default, parameter.minimum, parameter.maximum)
        if name in ranges
        else Fixed(parameter.default)
        for name, parameter in space.items()
    }


def _log(exponents: Exponents, default: float) -> LogUniform:
    low, high = exponents
    inside = 10.0**low <= default <= 10.0**high
    return LogUniform(low, high, default=default if inside else 10 ** ((low + high) / 2))
