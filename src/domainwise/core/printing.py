"""Text that is safe to show: names of files, domains and classes may hold characters that a terminal obeys."""

import codecs
import re
import sys

HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, line ends, and marks that change the direction of what follows."""
SURROGATE = re.compile("[\ud800-\udfff]")
PLAIN = {
    "±": "+-",
    "→": "->",
    "·": "-",
    "—": "-",
    "–": "-",
    "…": "...",
    "“": '"',
    "”": '"',
    "×": "x",
    "◂": "<",
    "−": "-",
}
"""What a terminal that knows ASCII alone shows."""
HANDLER = "domainwise.plain"


def printable(text: str) -> str:
    """One line: control characters as escapes, bytes of a name that are not UTF-8 as replacement characters."""
    if text.isprintable():
        return text
    return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", HIDDEN.sub(_escape, text))


def _escape(match: "re.Match[str]") -> str:
    return match[0].encode("unicode_escape").decode()


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


def replace_unprintable() -> None:
    """Makes standard output and error replace what their encoding lacks, instead of raising an error."""
    codecs.register_error(HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=HANDLER)
