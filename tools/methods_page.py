"""The page of methods, made from the algorithms themselves: `python tools/methods_page.py > docs/methods.md`."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm
from domainwise.algorithms.risk import ERM
from domainwise.core.registry import first_paragraph
from domainwise.protocol.spaces import (
    ByScale,
    Choice,
    Fixed,
    LogInteger,
    LogUniform,
    Parameter,
    Uniform,
    UniformInteger,
)

INTRODUCTION = """# Methods

What does each method minimise, what does it cost, and when is it worth a try? A batch has samples of E training
domains; R_e is the average cross-entropy on domain e.
Defaults and ranges are DomainBed's, or this project's where DomainBed has none; the paper's own ranges are in
`domainwise.paper`. Every method is checked against an independent straight-line version in float64.

This page is made from the source by `make docs`; a test keeps the two equal.

Shared by all: {shared}.

## Cost

Time of a step on one CPU thread: ERM's in milliseconds, the others as multiples of ERM's. ARM needs a network
that begins with a convolution.
Measured, while other programs used both cores, by
`python benchmarks/method_costs.py --rounds 3 --json results/bench/method-costs.json`, the later methods by `--methods`
([record](../results/bench/method-costs.json), {date}, {domains} domains, torch {torch}).

{costs}
"""
COSTS = Path(__file__).parents[1] / "results" / "bench" / "method-costs.json"


@dataclass(frozen=True)
class Page:
    """An algorithm's docstring, taken apart."""

    equation: str
    more: str
    fields: dict[str, str]

    @classmethod
    def of(cls, method: type[Algorithm]) -> "Page":
        text = " ".join((method.__doc__ or "").split())
        parts = re.split(r" ?\b(Paper|Note|Try it): ", text)
        head, rest = parts[0], parts[1:]
        first = first_paragraph(method.__doc__)
        return cls(first, head.removeprefix(first).strip(), dict(zip(rest[::2], rest[1::2], strict=True)))


def describe(parameter: Parameter | ByScale) -> str:
    """A parameter's default and range in words."""
    match parameter:
        case ByScale():
            small, image = describe(parameter.small), describe(parameter.image)
            return small if small == image else f"{small}; on photographs {image}"
        case LogUniform():
            return f"{parameter.default:g}, random 10^U({parameter.low:g}, {parameter.high:g})"
        case UniformInteger():
            return f"{parameter.default}, random floor U({parameter.low:g}, {parameter.high:g})"
        case Uniform():
            return f"{parameter.default:.3g}, random U({parameter.low:g}, {parameter.high:g})"
        case LogInteger():
            return f"{parameter.default}, random floor {parameter.base:g}^U({parameter.low:g}, {parameter.high:g})"
        case Choice():
            return f"{parameter.default}, random of {', '.join(map(str, parameter.options))}"
        case Fixed() if parameter.options:
            return f"{parameter.default} (or {', '.join(str(o) for o in parameter.options if o != parameter.default)})"
        case _:
            return "off" if parameter.default is None else f"{parameter.default:g}"


def own_parameters(method: type[Algorithm]) -> dict[str, Parameter | ByScale]:
    """Those that ERM does not have, or has otherwise."""
    shared = {name: describe(parameter) for name, parameter in ERM.space.items()}
    return {name: p for name, p in method.space.items() if shared.get(name) != describe(p)}


def needs(method: type[Algorithm]) -> str:
    wants = []
    if method.needs_domains > 1:
        wants.append(f"at least {method.needs_domains} training domains")
    if method.needs_features:
        wants.append("a network with separable features")
    if method.batch_dependent:
        wants.append("test images in batches of one domain")
    return ", ".join(wants) or "nothing special"


def costs_table(cases: list[dict[str, Any]]) -> str:
    """Methods by networks."""
    headings = [f"{case['network']}, {case['size']} px, {case['images']} images" for case in cases]
    rows = [["ERM", *(f"{1000 * case['erm_seconds']:.3g} ms" for case in cases)]]
    for name in (name for name in ALGORITHMS if name != "ERM"):
        ratios = [case["times_erm"].get(name) for case in cases]
        rows.append([name, *("" if ratio is None else f"{ratio:.{0 if ratio >= 10 else 1}f}" for ratio in ratios)])
    lines = [["method", *headings], ["---", *["---:"] * len(cases)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def section(name: str, method: type[Algorithm]) -> str:
    page = Page.of(method)
    lines = [f"## {name}", "", f"{page.equation} {page.more}".strip(), ""]
    lines += [f"- **{field}.** {text}" for field, text in page.fields.items() if field != "Try it"]
    parameters = "; ".join(f"`{key}` {describe(p)}" for key, p in own_parameters(method).items())
    lines += [f"- **Hyper-parameters.** {parameters or 'the shared ones'}."]
    lines += [f"- **Needs.** {needs(method)}."]
    lines += [f"- **Try it** {page.fields['Try it']}", ""]
    return "\n".join(lines)


def methods_page() -> str:
    shared = "; ".join(f"`{name}` {describe(parameter)}" for name, parameter in ERM.space.items())
    sections = [section(name, method) for name, method in ALGORITHMS.items()]
    record = json.loads(COSTS.read_text())
    costs, machine = costs_table(record["cases"]), record["machine"]
    introduction = INTRODUCTION.format(
        shared=shared, costs=costs, date=machine["date"], torch=machine["torch"], domains=record["domains"]
    )
    return "\n".join([introduction, *sections]).replace("<", "\\<")


if __name__ == "__main__":
    print(methods_page(), end="")
