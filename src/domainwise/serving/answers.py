"""What the server answers for an image: class, probabilities, set of classes and heatmap."""

import base64
import io
import time
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from domainwise.analysis.attention import algorithm_attention
from domainwise.core.errors import UserError
from domainwise.models.decisions import DecisionRule
from domainwise.models.model import Model
from domainwise.serving.limits import Refused

KEPT_RULES = 64


@dataclass(frozen=True)
class ImageScores:
    """The probabilities of one image, and its heatmap if asked for."""

    probabilities: tuple[float, ...]
    heatmap: str | None = None
    note: str = ""


class Answers:
    """Computes and words the answers of one model; thresholds that clients ask for are kept for the next time."""

    def __init__(self, model: Model, abstain: str = "", sets: str | float = "") -> None:
        self.model, self.abstain, self.sets = model, abstain, str(sets)
        self.kept_rule = lru_cache(KEPT_RULES)(partial(DecisionRule.of, model))
        self.kept_rule(self.abstain, self.sets)  # a model without calibration is refused at the start
        self.pace = self._seconds_per_image()

    def _seconds_per_image(self) -> float:
        """Of one image; the first pass prepares what the others use, so that the first request does not wait."""
        image = torch.zeros(1, *self.model.card.shape, dtype=torch.uint8)
        self.scores(image)
        started = time.perf_counter()
        self.scores(image)
        return time.perf_counter() - started

    def rule(self, abstain: str | None, sets: str | None) -> DecisionRule:
        """By what a request asks for, or else by the server's options; "none" turns them off."""
        chosen = (self.abstain if abstain is None else abstain, self.sets if sets is None else sets)
        try:
            return self.kept_rule(*("" if words == "none" else words for words in chosen))
        except UserError as error:
            raise Refused(400, "bad_option", str(error)) from None

    def scores(self, images: Tensor, domain: str = "") -> list[ImageScores]:
        """For images [N, C, H, W] of a domain; one that was not trained on is unseen."""
        known = domain if domain in self.model.domains else None
        return [ImageScores(tuple(row)) for row in self.model.probabilities(images, known).tolist()]

    def explained(self, images: Tensor, domain: str = "") -> list[ImageScores]:
        """The same, with Grad-CAM of the predicted classes."""
        scores = self.scores(images, domain)
        try:
            heat = algorithm_attention(self.model.algorithm, self._normalised(images), self._number(domain))[1].heat
        except UserError as error:  # a network without maps
            return [ImageScores(one.probabilities, None, str(error)) for one in scores]
        return [ImageScores(one.probabilities, *_picture(part)) for one, part in zip(scores, heat, strict=True)]

    def _number(self, domain: str) -> int | None:
        return self.model.domains.index(domain) if domain in self.model.domains else None

    def _normalised(self, images: Tensor) -> Tensor:
        return self.model.preprocessing.normalise(images.to(self.model.device))

    def words(self, scores: ImageScores, rule: DecisionRule) -> dict[str, Any]:
        """As JSON values; the class is null where the model does not answer."""
        decision = rule.decide(scores.probabilities)
        answer: dict[str, Any] = {
            "class": decision.label,
            "confidence": decision.confidence,
            "probabilities": dict(zip(self.model.classes, scores.probabilities, strict=True)),
        }
        if decision.classes is not None:
            answer["set"] = decision.classes
        return answer


def _picture(heat: Tensor) -> tuple[str | None, str]:
    """A grey PNG of the heat [H, W], the hottest pixel white, as a data URL; or None and the reason."""
    heat = heat.detach().float().cpu()
    if not bool(torch.isfinite(heat).all()) or float(heat.max()) <= 0:
        return None, "no part of this image speaks for its class"
    grey = (255 * heat / heat.max()).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(grey.numpy()).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode(), ""
