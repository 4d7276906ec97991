"""The application: which paths there are, and what happens to a request on its way."""

import asyncio
import base64
import hashlib
import json
import re
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.core.threads import cores
from domainwise.models.folder import load_model
from domainwise.models.model import Model
from domainwise.serving import images
from domainwise.serving.answers import Answers, ImageScores
from domainwise.serving.bodies import Bodies, File
from domainwise.serving.domains import DomainWatch
from domainwise.serving.limits import Limits, Refused
from domainwise.serving.metrics import CONTENT_TYPE, ServerMetrics
from domainwise.serving.observed import Observed
from domainwise.serving.worker import Compute, ImagesJob, Worker

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "image": {"type": "string", "format": "byte"},
                        "images": {"type": "array", "items": {"type": "string", "format": "byte"}},
                    },
                }
            },
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
"""What OpenAPI says of the bodies, which are read by hand: within limits."""
CORES = cores()
MISSING = "serving needs {}: pip install 'domainwise[serve]'"


def create_app(
    model: Model | Path | str,
    *,
    limits: Limits | None = None,
    abstain: str = "",
    sets: str | float = "",
    threads: int | None = None,
    device: str = "auto",
) -> "FastAPI":
    """An ASGI application that answers requests with a model, or with the model of a folder.

    `abstain` ("risk=0.05") and `sets` (0.9) are what requests get that do not ask for another; the model must then be
    calibrated. `threads` are those of the model on a CPU, by default one for each core but one, which decodes: threads
    that compete for a core slow each other down a lot. Errors are answered as {"error": {"code": ..., "message": ...}}.
    """
    try:
        import python_multipart  # noqa: F401 (so that the error names what is missing)
        import uvicorn  # noqa: F401
        from fastapi import FastAPI
    except ModuleNotFoundError as error:
        raise UserError(MISSING.format(error.name)) from None
    loaded = model if isinstance(model, Model) else load_model(model, device=device)
    images.check_readable(loaded.preprocessing)
    service = Service(loaded, limits or Limits(), Answers(loaded, abstain, sets), threads or max(1, CORES - 1))
    app = FastAPI(title="domainwise", docs_url=None, redoc_url=None, lifespan=service.lifespan)
    app.state.service = service
    add_routes(app, service)
    app.add_middleware(Observed, metrics=service.metrics, drain=service.bodies.drain)
    return app


class Service:
    """A model with the worker, the limits and the measurements that requests share."""

    def __init__(self, model: Model, limits: Limits, answers: Answers, threads: int) -> None:
        self.model, self.limits, self.answers = model, limits, answers
        self.metrics = ServerMetrics(lambda: self.worker.waiting)
        self.worker = Worker(limits, threads, answers.pace, self._computed)
        self.watch = DomainWatch(model, limits, self.metrics)
        self.bodies = Bodies(limits)
        self.decoders = ThreadPoolExecutor(CORES, "decoder")
        self.started = time.time()

    @asynccontextmanager
    async def lifespan(self, _app: "FastAPI") -> AsyncGenerator[None, None]:
        self.worker.start()
        self.watch.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.worker.close)
            self.watch.close()
            self.decoders.shutdown(wait=False, cancel_futures=True)

    def _computed(self, count: int, seconds: float) -> None:
        self.metrics.batches.observe(count)
        self.metrics.compute.observe(seconds)

    async def compute(
        self,
        request: "Request",
        compute: Compute,
        domain: str,
        most: int,
        *,
        alone: bool = False,
        watched: bool = False,
    ) -> list[tuple[str | None, ImageScores]]:
        """The name and the scores of every image of a request."""
        body = bytearray()
        with self.bodies.held(body):
            await self.bodies.read(request, body)
            files = await self.bodies.files(request, body)
        if len(files) > most:
            raise Refused(413, "too_many_images", f"{len(files)} images in one request: send {most} at most")
        with self.worker.room(len(files)):
            names, inputs = [file.sent_as for file in files], await self._decoded(files)
            del files  # which may be large
            after = partial(self.watch.add, domain, inputs) if watched else lambda: None
            job = ImagesJob(compute, inputs, domain, alone or self.model.batch_dependent, after)
            scores = await asyncio.wrap_future(self.worker.submit(job))
        request.scope["images"] = len(names)
        return list(zip(names, scores, strict=True))

    async def _decoded(self, files: list[File]) -> Tensor:
        loop = asyncio.get_running_loop()
        read = partial(images.read, expected=self.model.preprocessing, limits=self.limits)
        waiting = [loop.run_in_executor(self.decoders, partial(read, file.data, name=file.name)) for file in files]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        for one in results:
            if isinstance(one, BaseException):
                raise one
        return torch.stack([one for one in results if isinstance(one, Tensor)])

    def count(self, answer: dict[str, Any]) -> None:
        if answer["class"] is None:
            self.metrics.abstentions.add()
        else:
            self.metrics.predictions.add(answer["class"])

    def facts(self) -> dict[str, Any]:
        """What /health says of the model."""
        card = self.model.card
        return {
            "status": "ok" if self.worker.healthy else "unhealthy",
            "model": f"{card.algorithm}, {card.network}",
            "weights": self.model.weights,
            "classes": list(self.model.classes),
            "training_domains": list(self.model.domains),
            "unseen": self.model.unseen,
            "calibration": self.model.calibration,
            "calibrated": card.calibration is not None,
            "abstain": self.answers.abstain or None,
            "sets": self.answers.sets or None,
            "drift": self.watch.missing or "measured",
            "limits": {
                "max_megabytes": self.limits.max_megabytes,
                "max_megapixels": self.limits.max_megapixels,
                "max_images": self.limits.max_images,
                "request_megabytes": self.limits.request_megabytes,
                "queue": self.limits.queue,
                "wait_seconds": self.limits.wait_seconds,
            },
            "seconds": round(time.time() - self.started, 1),
        }


def add_routes(app: "FastAPI", service: Service) -> None:
    from fastapi import HTTPException, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse
    from starlette.exceptions import HTTPException as AnyHTTPException

    class Json(JSONResponse):
        """In ASCII: names of folders, which are names of classes, may hold bytes that are not UTF-8."""

        def render(self, content: Any) -> bytes:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()

    page = resources.files("domainwise.serving").joinpath("page.html").read_text(encoding="utf-8")
    policy = content_policy(page)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        request.scope["error"] = error.code
        return Json(error.content, error.status, error.headers)

    @app.exception_handler(AnyHTTPException)
    async def no_such_path(request: Request, error: HTTPException) -> Response:
        code = {404: "no_such_path", 405: "method"}.get(error.status_code, "bad_request")
        message = {404: "no such path: see /predict, /heatmap, /health, /metrics", 405: "another method is needed here"}
        words = message.get(error.status_code, str(error.detail))
        request.scope["error"] = code
        return Json(Refused(error.status_code, code, words).content, error.status_code, error.headers)

    @app.get("/", include_in_schema=False)
    async def start() -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})

    @app.get("/health", summary="Whether the model answers, what it is, and the limits of requests")
    async def health() -> Response:
        facts = service.facts()
        return Json(facts, 200 if facts["status"] == "ok" else 503)

    @app.get("/metrics", summary="Measurements for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.post("/predict", summary="Classes and probabilities of one or more images", openapi_extra=SCHEMA)
    async def predict(
        request: Request, domain: str = "", abstain: str | None = None, sets: str | None = None
    ) -> Response:
        check_options(request)
        rule = await asyncio.to_thread(service.answers.rule, abstain, sets)
        most = service.limits.max_images
        scored = await service.compute(request, service.answers.scores, domain, most, watched=True)
        answers = [service.answers.words(scores, rule) for _, scores in scored]
        for answer in answers:
            service.count(answer)
        files = [{} if name is None else {"file": name} for name, _ in scored]
        return Json({"predictions": [file | answer for file, answer in zip(files, answers, strict=True)]})

    @app.post("/heatmap", summary="The prediction of one image, and where it comes from", openapi_extra=SCHEMA)
    async def heatmap(
        request: Request, domain: str = "", abstain: str | None = None, sets: str | None = None
    ) -> Response:
        check_options(request)
        rule = await asyncio.to_thread(service.answers.rule, abstain, sets)
        ((_, scores),) = await service.compute(request, service.answers.explained, domain, 1, alone=True)
        answer = service.answers.words(scores, rule)
        service.count(answer)
        return Json({**answer, "heatmap": scores.heatmap, "note": scores.note})


OPTIONS = ("domain", "abstain", "sets")


def check_options(request: "Request") -> None:
    """Refuses an option of the URL that does not exist: one that is misspelt would do nothing."""
    for name in request.query_params:
        if name not in OPTIONS:
            raise Refused(400, "bad_option", f"unknown option {name[:40]!r} in the URL: known: {', '.join(OPTIONS)}")


def content_policy(page: str) -> str:
    """Allows the page its own script and style, by their digests, requests to this server, and nothing else."""

    def digests(tag: str) -> str:
        blocks = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
        return " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in blocks
        )

    return (
        f"default-src 'none'; script-src {digests('script')}; style-src {digests('style')}; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
