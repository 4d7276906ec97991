"""How a user's images are read: columns of a table, root, grey window, bursts. Part of the dataset's name."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from domainwise.core.errors import UserError, unknown

NEEDED, OPTIONAL = ("path", "label", "domain"), ("group", "split", "time", "weight")
ROLES = (*NEEDED, *OPTIONAL)
"""What a column of a table may be."""
UNITS = {"s": 1, "m": 60, "h": 3600}
DEEPEST_GREY = 65535
WINDOW = re.compile(r"(\d{1,5}):(\d{1,5})")
BURSTS = re.compile(r"(?:time:)?(\d{1,6})([smh])")

Window = tuple[int, int]


@dataclass(frozen=True)
class Reading:
    """Options that decide what is read of a folder or table of images.

    `columns` are (role, column) of a table, sorted; other roles have the column of their name. An optional role with an
    empty column is not read. `root` is the folder or
    URL that paths are relative to (default: the table's folder). `window` are the grey values of deep grey images that
    become black and white. Images of one domain within `bursts` seconds of the previous one are one group.
    """

    columns: tuple[tuple[str, str], ...] = ()
    root: str = ""
    window: Window | None = None
    bursts: int = 0

    @classmethod
    def of(
        cls, columns: Mapping[str, str] | None = None, root: object = "", window: str = "", bursts: str = ""
    ) -> "Reading":
        """From a user's values: {"domain": "camera"}, a folder or URL, "0:4095" and "time:30s"."""
        for role, column in (columns or {}).items():
            if role not in ROLES:
                raise unknown("kind of column", role, ROLES)
            if not column and role in NEEDED:
                raise UserError(f"the {role} needs a column: name it", argument="columns")
        place = str(root or "")
        if place and "://" not in place:
            place = os.path.realpath(os.path.expanduser(place))  # noqa: PTH111 (Path's own methods raise RuntimeError)
        return cls(tuple(sorted((columns or {}).items())), place, _window(window), _seconds(bursts))

    def __str__(self) -> str:
        """As it ends a dataset's name: "?domain=camera&window=0%3A4095"; empty if nothing is chosen."""
        window = f"{self.window[0]}:{self.window[1]}" if self.window else ""
        further = {"root": self.root, "window": window, "bursts": f"{self.bursts}s" if self.bursts else ""}
        values = [*self.columns, *((name, value) for name, value in further.items() if value)]
        return f"?{urlencode(values)}" if values else ""

    @classmethod
    def parse(cls, text: str) -> "Reading":
        """From the end of a dataset's name."""
        values = dict(parse_qsl(text.removeprefix("?"), keep_blank_values=True))
        further = {name: values.pop(name, "") for name in ("root", "window", "bursts")}
        return cls.of(values, **further)

    def column(self, role: str) -> str:
        return dict(self.columns).get(role, role)


PLAIN = Reading()


def _window(text: str) -> Window | None:
    if not text:
        return None
    match = WINDOW.fullmatch(text)
    if not match or not int(match[1]) < int(match[2]) <= DEEPEST_GREY:
        message = f"window {text[:40]!r}: write LOW:HIGH with 0 <= LOW < HIGH <= {DEEPEST_GREY}, e.g. 0:4095"
        raise UserError(message, argument="window")
    return int(match[1]), int(match[2])


def _seconds(text: str) -> int:
    if not text:
        return 0
    match = BURSTS.fullmatch(text)
    if not match or not int(match[1]):
        raise UserError(f"bursts {text[:40]!r}: write time and a gap, e.g. time:30s, time:5m", argument="bursts")
    return int(match[1]) * UNITS[match[2]]
