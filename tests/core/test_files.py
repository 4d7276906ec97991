"""Files in a folder that several machines share, where processes of both may have the same number."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import domainwise
from domainwise.core.errors import UserError
from domainwise.core.files import (
    Unreadable,
    atomic,
    complete_replacement,
    read,
    replaced_together,
    writable_file,
    writable_folder,
    write,
)


def test_two_that_write_one_file_at_once_both_succeed_and_the_last_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with atomic(path) as ours:
        ours.write(b"the longer text, ")
        with atomic(path) as theirs:
            theirs.write(b"theirs")
        assert path.read_bytes() == b"theirs"
        ours.write(b"whole")
    assert path.read_bytes() == b"the longer text, whole" and list(tmp_path.iterdir()) == [path]


def test_two_that_try_one_folder_at_once_both_find_it_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch = Path.touch

    def meanwhile(path: Path) -> None:
        monkeypatch.setattr(Path, "touch", touch)
        touch(path)
        writable_folder(tmp_path)

    monkeypatch.setattr(Path, "touch", meanwhile)
    assert writable_folder(tmp_path) == tmp_path and not list(tmp_path.iterdir())


def test_a_file_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch()
    old.chmod(0o600)
    before = os.umask(0o027)
    try:
        for path in (old, new):
            write(path, "text")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (old, new)] == [0o600, 0o640]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.touch()
    os.chown(path, 65534, 65534)
    write(path, "text")
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534) and path.read_text() == "text"


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    first, second, missing = tmp_path / "first", tmp_path / "second", tmp_path / "missing"
    first.symlink_to("second")
    second.symlink_to("real/file")
    missing.symlink_to("real/new")
    (tmp_path / "real" / "file").write_text("old")
    for link in (first, missing):
        assert writable_file(link) == link
        write(link, link.name)
        assert link.is_symlink() and link.read_text() == link.name
    assert sorted(path.name for path in (tmp_path / "real").iterdir()) == ["file", "new"]


def test_devices_and_pipes_are_written_to(tmp_path: Path) -> None:
    device, pipe = tmp_path / "null", tmp_path / "pipe"
    device.symlink_to("/dev/null")
    os.mkfifo(pipe)
    heard: list[bytes] = []
    listener = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    listener.start()
    for path in (device, pipe):
        write(writable_file(path), "text")
    listener.join(10)
    assert heard == [b"text"] and stat.S_ISFIFO(pipe.stat().st_mode) and Path("/dev/null").is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["null", "pipe"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_standard_output_is_a_file_to_write_to(tmp_path: Path, name: str) -> None:
    script = (
        f"from domainwise.core.files import *; print('a'); write(writable_file(Path('{name}')), 'b\\n'); print('c')"
    )
    command = [sys.executable, "-c", script]
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(command, stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "a\nb\nc\n"
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"a\nb\nc\n"


def test_what_cannot_be_read_is_named_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").symlink_to("nothing")
    (tmp_path / "circle").symlink_to("circle")
    for name, reason in {
        "pipe": "not a regular file",
        "folder": "not a regular file",
        "broken": "a link to nothing",
        "circle": "Too many levels of symbolic links",
    }.items():
        with pytest.raises(Unreadable, match=f"{name} cannot be read .{reason}"):
            read(tmp_path / name)
    for absent in (tmp_path / "absent", tmp_path / "absent" / "file"):
        with pytest.raises(FileNotFoundError):
            read(absent)
    write(tmp_path / "file", b"0123456789")
    assert read(tmp_path / "file") == b"0123456789" and read(tmp_path / "file", 3) == b"789"


REPLACE = """
import os, signal, sys
from pathlib import Path
from domainwise.core.files import replaced_together, write

count, last, folder = 0, int(sys.argv[1]), Path(sys.argv[2])

def dies(event, arguments):
    global count
    if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir") and str(folder) in str(arguments[0]):
        count += 1
        if count > last:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(dies)
with replaced_together(folder) as staged:
    write(staged / "a", "new")
    (staged / "plans").mkdir()
    write(staged / "plans" / "second", "new")
    write(staged / "z", "new")
"""


def test_files_are_replaced_together_wherever_a_process_is_killed(tmp_path: Path) -> None:
    def contents(folder: Path) -> dict[str, str]:
        return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}

    old = {"a": "old", "plans/first": "old", "z": "old", "mine": "kept"}
    new = {"a": "new", "plans/second": "new", "z": "new", "mine": "kept"}
    environment = os.environ | {"PYTHONPATH": str(Path(domainwise.__file__).parents[1])}  # -S leaves out site-packages
    seen = set()
    for last in range(40):
        folder = tmp_path / str(last)
        (folder / "plans").mkdir(parents=True)
        for name, text in old.items():
            (folder / name).write_text(text)
        ended = subprocess.run([sys.executable, "-S", "-c", REPLACE, str(last), str(folder)], env=environment)
        complete_replacement(folder)
        left = {name: text for name, text in contents(folder).items() if ".tmp/" not in name}
        assert left in (old, new), last
        seen.add((ended.returncode, left == new))
        with replaced_together(folder) as staged:
            write(staged / "a", "newer")
        assert contents(folder) == left | {"a": "newer"}, "what was left of it is gone"
        if ended.returncode == 0:
            break
    assert seen == {(-signal.SIGKILL, False), (-signal.SIGKILL, True), (0, True)}


def test_a_replacement_that_fails_leaves_the_old_files(tmp_path: Path) -> None:
    write(tmp_path / "a", "old")
    with pytest.raises(UserError), replaced_together(tmp_path) as staged:
        write(staged / "a", "new")
        raise UserError("something else")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"
