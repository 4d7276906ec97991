"""A model as one file for other runtimes: ONNX, or a program of torch.export.

The file contains the normalisation. Its input is `images`, uint8 [N, C, H, W] (RGB, resized bilinearly to H x W as the
metadata say), or `rows`, float32 [N, D], for vectors; N is dynamic. Its outputs are `logits` and `probabilities`,
[N, classes]. Every file is compared with the model before it is written to its final path.
"""

import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from domainwise.core import files
from domainwise.core.errors import UserError, unknown
from domainwise.engine.execution.capture import first_line
from domainwise.models.model import Model
from domainwise.nets.backbones import Backbone

TOLERANCE = 1e-4
BATCHES = (1, 2, 7)
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}


def export(model: Model, to: str, out: Path) -> Path:
    """Writes the model to a file that gives the same outputs within TOLERANCE; raises UserError otherwise."""
    if to not in SUFFIXES:
        raise unknown("format to export to", to, SUFFIXES)
    if model.batch_dependent:
        raise UserError(f"predictions of {model.card.algorithm} depend on their batch: it cannot be exported")
    files.writable_file(out)
    graph = Graph(Model(model.card, model.algorithm.state_dict(), device="cpu"))
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / f"draft{SUFFIXES[to]}"
        with _quiet():
            try:
                _FORMATS[to](graph, draft)
            except (torch.onnx.OnnxExporterError, torch._dynamo.exc.TorchDynamoException) as error:
                reason = first_line(error)
                raise UserError(f"{model.card.network} cannot be exported to {to} ({reason})") from None
            _check(graph, _RUNNERS[to](draft))
        with draft.open("rb") as checked, files.atomic(out) as file:
            shutil.copyfileobj(checked, file)
    return out


class Graph(nn.Module):
    """The exported module: raw inputs -> logits and probabilities."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.card = model.card
        self.algorithm = model.algorithm
        self.temperature = model.temperature
        self.preprocessing = model.preprocessing.to(torch.float32)
        self.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.eval()

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.algorithm.predict(self.preprocessing.normalise(inputs))
        return logits, (logits / self.temperature).softmax(1)

    @property
    def input_name(self) -> str:
        return "rows" if self.preprocessing.vectors else "images"

    def example(self, n: int, seed: int = 0) -> Tensor:
        """n random inputs of the right kind."""
        random = torch.Generator().manual_seed(seed)
        seen = self.preprocessing
        if not seen.vectors:
            return torch.randint(0, 256, (n, *seen.shape), generator=random, dtype=torch.uint8)
        return seen.mean + seen.std * torch.randn(n, *seen.shape, generator=random)

    def metadata(self) -> dict[str, str]:
        """The description written into the file: inputs, outputs, classes, versions."""
        shape = ", ".join(map(str, self.card.shape))
        colours = {1: "grey", 3: "RGB"}.get(self.card.shape[0], "all")
        how = (
            f"float32 [N, {shape}]: raw rows; they are standardised inside"
            if self.preprocessing.vectors
            else f"uint8 [N, {shape}]: {colours} channels first, values 0 to 255, resized bilinearly with antialiasing "
            f"to {self.card.shape[2]} x {self.card.shape[1]} (width x height); normalised inside"
        )
        facts = {"algorithm": self.card.algorithm, "network": self.card.network}
        return {
            "input": how,
            "output": "logits and probabilities [N, classes]: softmax(logits / temperature)",
            "temperature": repr(self.temperature),
            "classes": json.dumps(self.card.classes),
            **facts,
            **{f"version of {name}": version for name, version in self.card.versions.items()},
        }


def _onnx(graph: Graph, file: Path) -> None:
    try:
        import onnx  # noqa: F401 (so that the error names what is missing)
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(f"exporting to ONNX needs {error.name}: pip install 'domainwise[onnx]'") from None
    for module in graph.modules():
        if isinstance(module, Backbone):
            module.use_plain_attention()  # which the exporter knows for every model
    program = torch.onnx.export(
        graph,
        (graph.example(2),),
        dynamo=True,
        input_names=[graph.input_name],
        output_names=["logits", "probabilities"],
        dynamic_shapes={"inputs": {0: torch.export.Dim("N")}},
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(graph.metadata())
    program.save(str(file), external_data=False)


def _torch(graph: Graph, file: Path) -> None:
    program = torch.export.export(graph, (graph.example(2),), dynamic_shapes={"inputs": {0: torch.export.Dim("N")}})
    torch.export.save(program, file, extra_files={"metadata.json": json.dumps(graph.metadata(), indent=1)})


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporters' warnings about their own internals."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


Runner = Callable[[Tensor], tuple[Any, Any]]


def _onnx_runner(file: Path) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(["logits", "probabilities"], {name: x.numpy()})


def _torch_runner(file: Path) -> Runner:
    module = torch.export.load(file).module()
    return lambda x: module(x)


_FORMATS: dict[str, Callable[[Graph, Path], None]] = {"onnx": _onnx, "torch": _torch}
_RUNNERS: dict[str, Callable[[Path], Runner]] = {"onnx": _onnx_runner, "torch": _torch_runner}


@torch.no_grad()
def _check(graph: Graph, runner: Runner) -> None:
    """Compares the file's outputs with the model's, for batches of several sizes."""
    for n in BATCHES:
        x = graph.example(n, seed=n)
        for mine, theirs in zip(graph(x), runner(x), strict=True):
            gap = float(np.abs(mine.numpy() - np.asarray(theirs)).max())
            scale = max(1.0, float(mine.abs().max()))
            if not gap <= TOLERANCE * scale:
                raise UserError(f"the exported file differs from the model by {gap:.2g} on {n} inputs: not written")
