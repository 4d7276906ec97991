"""Counters, gauges and histograms in the text format that Prometheus reads.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_lock = threading.Lock()


class Measured:
    """One number for each combination of label values that has occurred."""

    kind = "counter"

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        self.name, self.meaning, self.labels = name, meaning, labels
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        with _lock:
            self.values[labels] = self.values.get(labels, 0.0) + amount

    def lines(self) -> Iterator[str]:
        with _lock:
            values = sorted(self.values.items())
        for labels, value in values:
            yield sample(self.name, dict(zip(self.labels, labels, strict=True)), value)

    def text(self) -> str:
        about = [f"# HELP {self.name} {self.meaning}", f"# TYPE {self.name} {self.kind}"]
        return "".join(f"{line}\n" for line in (*about, *self.lines()))


class Gauge(Measured):
    """A number that goes up and down; `now` asks for one that is known elsewhere."""

    kind = "gauge"

    def __init__(self, name: str, meaning: str, *labels: str, now: Callable[[], float] | None = None) -> None:
        super().__init__(name, meaning, *labels)
        self.now = now

    def set(self, *labels: str, value: float) -> None:
        with _lock:
            self.values[labels] = value

    def lines(self) -> Iterator[str]:
        if self.now is not None:
            self.set(value=self.now())
        return super().lines()


class Histogram(Measured):
    """How many values were at most each of some bounds, for each combination of label values."""

    kind = "histogram"

    def __init__(self, name: str, meaning: str, bounds: Sequence[float], *labels: str) -> None:
        super().__init__(name, meaning, *labels)
        self.bounds = (*bounds, math.inf)
        self.counts: dict[tuple[str, ...], list[int]] = {}

    def observe(self, value: float, *labels: str) -> None:
        with _lock:
            counts = self.counts.setdefault(labels, [0] * len(self.bounds))
            counts[bisect_left(self.bounds, value)] += 1
            self.values[labels] = self.values.get(labels, 0.0) + value

    def lines(self) -> Iterator[str]:
        with _lock:
            counted = [(labels, list(counts), self.values[labels]) for labels, counts in sorted(self.counts.items())]
        for labels, counts, total in counted:
            named, reached = dict(zip(self.labels, labels, strict=True)), 0
            for bound, count in zip(self.bounds, counts, strict=True):
                reached += count
                yield sample(f"{self.name}_bucket", {**named, "le": _number(bound)}, reached)
            yield sample(f"{self.name}_sum", named, total)
            yield sample(f"{self.name}_count", named, reached)


def sample(name: str, labels: dict[str, str], value: float) -> str:
    """One line; label values, which may be any text, are escaped."""
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"').encode(errors="replace").decode()


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else f"{value:.10g}"


class ServerMetrics:
    """What the server measures of itself."""

    def __init__(self, waiting: Callable[[], float]) -> None:
        name = "domainwise_{}".format
        self.requests = Measured(name("requests_total"), "Requests answered.", "path", "status")
        self.errors = Measured(name("errors_total"), "Requests answered with an error.", "code")
        self.seconds = Histogram(name("request_seconds"), "From a request to its answer.", SECONDS, "path")
        self.waiting = Gauge(name("queue_images"), "Images that wait for the model.", now=waiting)
        self.batches = Histogram(name("batch_images"), "Images that the model computed at once.", SIZES)
        self.compute = Histogram(name("batch_seconds"), "Time the model took for a batch.", SECONDS)
        self.predictions = Measured(name("predictions_total"), "Images predicted, by class.", "class")
        self.abstentions = Measured(name("abstentions_total"), "Images without an answer, for lack of confidence.")
        self.domain_images = Measured(name("domain_images_total"), "Images predicted, by their domain.", "domain")
        self.drift_tests = Measured(
            name("drift_tests_total"), "Comparisons of a domain's images with the training domains.", "domain"
        )
        self.drifted = Measured(
            name("drift_detected_total"), "Comparisons in which the images differed from all of them.", "domain"
        )
        self.drift_score = Gauge(name("drift_score"), "Distance to the nearest, from 0 to 2, of the latest.", "domain")

    def text(self) -> str:
        return "".join(one.text() for one in vars(self).values())
