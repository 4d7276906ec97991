"""How much a client may ask of the server, and what the server says if it asks for more."""

from dataclasses import dataclass, fields

from domainwise.core.errors import UserError

MEGABYTE, MEGAPIXEL = 1 << 20, 10**6
LARGEST_MEGAPIXELS = 178
"""Pillow refuses images of more pixels."""


@dataclass(frozen=True)
class Limits:
    """What one request may hold, what all of them together may, and how long they may take.

    Memory is bounded by these numbers: bodies by `pending_megabytes`, and images of the model's shape by `queue`.
    """

    max_megabytes: float = 16  # of one image file
    max_megapixels: float = 64  # of one image, as its header says
    max_images: int = 32  # in one request
    batch_size: int = 32  # images that the model computes at once
    queue: int = 256  # images that are being decoded, wait, or are computed; a request beyond is refused
    request_megabytes: float = 64  # of one request's body
    pending_megabytes: float = 128  # of the bodies of all requests
    connections: int = 1024
    linger_seconds: float = 0.002  # how long the first image of a batch waits for others
    read_seconds: float = 30  # in which a request's body must have arrived
    wait_seconds: float = 10  # a request that would wait longer for the model is refused
    shutdown_seconds: float = 30  # for requests in flight when the server is stopped
    drift_images: int = 100  # of a domain, compared at once with the training domains
    drift_share: float = 0.05  # of the time that such comparisons may take
    drift_domains: int = 32  # that are counted by name

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value <= 10**6:
                words = field.name.replace("_", " ")
                raise UserError(f"{words} {value:g}: give a number above 0, a million at most", argument=field.name)
        if self.max_megapixels > LARGEST_MEGAPIXELS:
            raise UserError(
                f"max megapixels {self.max_megapixels:g}: no image of more than {LARGEST_MEGAPIXELS} can be decoded",
                argument="max_megapixels",
            )
        if self.queue < self.max_images:
            raise UserError(
                f"a queue of {self.queue} images does not hold one request of {self.max_images}", argument="queue"
            )

    @property
    def image_bytes(self) -> int:
        return int(self.max_megabytes * MEGABYTE)

    @property
    def pixels(self) -> int:
        return int(self.max_megapixels * MEGAPIXEL)

    @property
    def request_bytes(self) -> int:
        return int(self.request_megabytes * MEGABYTE)

    @property
    def pending_bytes(self) -> int:
        return int(self.pending_megabytes * MEGABYTE)


class Refused(Exception):
    """A request that is answered with an error: its status, a code for programs, and a sentence for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"} if self.status == 503 else {}

    @property
    def content(self) -> dict[str, dict[str, str]]:
        return {"error": {"code": self.code, "message": self.message}}


def busy(what: str) -> Refused:
    return Refused(503, "busy", f"{what}: try again in a moment")
