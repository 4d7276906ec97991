"""The paper's search spaces (appendix A.2 and B), per algorithm and dataset, as exponents of ten.

tab:searchd, tab:searcha, tab:searchu    multi-source DAT, AT, UAT
tab:searchsingle                         single-source DAT
appendix text                            DAT and the learning rate on Mixed-Same

The ranges of WRM and ADA, the same for every dataset, are those of the algorithms themselves.
"""

from domainwise.protocol.spaces import Fixed, LogUniform, Parameter

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


def _log(exponents: Exponents, default: float) -> LogUniform:
    low, high = exponents
    inside = 10.0**low <= default <= 10.0**high
    return LogUniform(low, high, default=default if inside else 10 ** ((low + high) / 2))
