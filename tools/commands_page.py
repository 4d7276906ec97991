"""The page of commands, made from the command line: `python tools/commands_page.py > docs/commands.md`."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer.main

from domainwise.cli import app

INTRODUCTION = """# Every command

Which commands are there, and which options do they have? This page has what `domainwise COMMAND --help` says. It is
made from the source by `make docs`; a test keeps the two equal.
Results go to standard output, progress and notes to standard error; a user's mistake is one line and exit status 2.
Shell completion, of names too: `domainwise --install-completion`.
"""
EVERYWHERE = "These options may stand anywhere on the line. They also apply to worker processes."


def commands() -> Iterator[tuple[str, Any]]:
    """(name, click command) of the program and of every command, those of a family as "data list"."""
    program = typer.main.get_command(app)
    yield "", program
    yield from _inner("", program)


def _inner(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    for word, part in command.commands.items():
        if hasattr(part, "commands"):
            yield from _inner(f"{name} {word}".strip(), part)
        else:
            yield f"{name} {word}".strip(), part


def section(name: str, command: Any) -> str:
    """A command's help, its arguments and options as a table, its examples as a block."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name not in _CLICKS]
    usage = " ".join(["domainwise", *([name] if name else []), *(_shown(argument) for argument in arguments)])
    title = f"`{usage}`" if name else "With every command"
    lines = [f"## {title}", "", _code(inspect.cleandoc(command.help or "")) if name else EVERYWHERE, ""]
    rows = [(_shown(p), p.help or "") for p in arguments] + [(_names(p), _words(p)) for p in options]
    if rows:
        lines += ["| | |", "|---|---|", *(f"| `{left}` | {_cell(right)} |" for left, right in rows), ""]
    examples = [_plain(example) for example in re.split(r"\s+·\s+", command.epilog or "")]
    if name and command.epilog:
        lines += ["Examples: " + "; ".join(f"`{example}`" for example in examples) + ".", ""]
    return "\n".join(lines)


def commands_page() -> str:
    return "\n".join([INTRODUCTION, *(section(name, command) for name, command in commands())]).rstrip() + "\n"


_CLICKS = ("help", "install_completion", "show_completion")


def _shown(argument: Any) -> str:
    word = (argument.metavar or argument.name).strip("[]").upper()
    word = word.removesuffix("...") + ("..." if argument.nargs == -1 else "")
    return word if argument.required else f"[{word}]"


def _names(option: Any) -> str:
    value = "" if option.is_flag else f" {option.name.upper()}"
    return ", ".join([*option.opts, *option.secondary_opts]) + value


def _words(option: Any) -> str:
    """An option's help with its default, unless the help says it."""
    words = option.help or ""
    default = option.default() if callable(option.default) else option.default
    if option.is_flag or default in (None, "", []) or "[default" in words:
        return words + (" Required." if option.required else "")
    shown = ", ".join(map(str, default)) if isinstance(default, (list, tuple)) else default
    return f"{words} [default: {shown}]"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")


def _code(text: str) -> str:
    return re.sub(r"\[bold\](.*?)\[/\]", r"`\1`", text)


def _plain(example: str) -> str:
    return re.sub(r"\[/?(bold)?\]", "", example).removeprefix("Examples:").strip()


if __name__ == "__main__":
    print(commands_page(), end="")
