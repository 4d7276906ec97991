"""Drift while serving: the latest images of every domain that clients name, compared with the training domains.

A comparison (`models.drift`) takes much longer than a prediction. So it runs in a thread of its own, on `drift_images`
successive images of one domain, and then pauses, so that all comparisons take `drift_share` of the time.
"""

import logging
import threading
import time
from queue import SimpleQueue

import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.core.printing import printable
from domainwise.models.drift import comparable, drift_of_features
from domainwise.models.model import Model
from domainwise.serving.limits import Limits
from domainwise.serving.metrics import ServerMetrics

log = logging.getLogger(__name__)

UNNAMED, OTHER = "unnamed", "other"
"""Images whose request names no domain; domains beyond the number that is counted by name."""
LONGEST_NAME = 100
PERMUTATIONS = 199
"""Enough for a p-value at the level of `models.drift`, in a fifth of its time."""


class DomainWatch:
    """Collects features of each domain and counts the comparisons that found drift."""

    def __init__(self, model: Model, limits: Limits, metrics: ServerMetrics) -> None:
        self.model, self.limits, self.metrics = model, limits, metrics
        self._names: set[str] = set()
        self._windows: dict[str, list[Tensor]] = {}
        self._busy: set[str] = set()  # domains whose window is being compared, or waits for it
        self._full: SimpleQueue[tuple[str, Tensor] | None] = SimpleQueue()
        self._closing = threading.Event()
        try:
            comparable(model)
            self.missing = ""
        except UserError as error:
            self.missing = str(error)

    def start(self) -> None:
        self._closing.clear()
        threading.Thread(target=self._compare_all, name="drift").start()

    def close(self) -> None:
        self._closing.set()
        self._full.put(None)

    def name(self, domain: str) -> str:
        """The name under which a domain is counted: of at most `drift_domains`, whatever clients send."""
        if not domain:
            return UNNAMED
        domain = domain[:LONGEST_NAME]
        if domain not in self._names:
            if len(self._names) >= self.limits.drift_domains:
                return OTHER
            self._names.add(domain)
        return domain

    def add(self, domain: str, images: Tensor) -> None:
        """Takes in images that were predicted; only the thread of the model calls it."""
        name = self.name(domain)
        self.metrics.domain_images.add(name, amount=len(images))
        if self.missing or name in self._busy or name == OTHER:
            return
        window = self._windows.setdefault(name, [])
        window += self.model.embed(images[: self.limits.drift_images - len(window)]).cpu().unbind()
        if len(window) >= self.limits.drift_images:
            self._busy.add(name)
            self._full.put((name, torch.stack(self._windows.pop(name))))

    def _compare_all(self) -> None:
        number = 0
        while (full := self._full.get()) is not None and not self._closing.is_set():
            name, features = full
            started = time.monotonic()
            number += 1
            try:
                drift = drift_of_features(self.model, features, seed=number, permutations=PERMUTATIONS)
            except Exception as error:  # nobody waits for this thread: it must not end unnoticed
                log.error("drift of %s could not be measured: %s", printable(name), printable(str(error)))
            else:
                self.metrics.drift_tests.add(name)
                self.metrics.drifted.add(name, amount=float(drift.drifted))
                self.metrics.drift_score.set(name, value=drift.score)
                if drift.drifted:
                    log.warning("drift in %s: %s", printable(name), drift.score_sentence)
            self._closing.wait((time.monotonic() - started) * (1 / self.limits.drift_share - 1))
            self._busy.discard(name)
