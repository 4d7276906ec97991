"""Sixty kinds of bad table: each is one line on standard error, and exit status 2."""

from pathlib import Path

import pytest

from commands import Command

GOOD = "path,label,domain\nlab/cat/000.png,cat,lab\n"
BAD: dict[str, tuple[str, bytes, str]] = {
    "no rows": ("t.csv", b"path,label,domain\n", "no rows"),
    "empty file": ("t.csv", b"", "is empty"),
    "blank header": ("t.csv", b",,\n1,2,3\n", "is empty"),
    "two columns of one name": ("t.csv", b"path,label,label,domain\na,b,c,d\n", "two columns 'label'"),
    "no label": ("t.csv", b"path,domain\na,b\n", "no column 'label'"),
    "semicolons": ("t.csv", b"path;label;domain\na;b;c\n", "semicolons"),
    "ragged": ("t.csv", GOOD.encode() + b"a,b\n", "line 3: 2 values for 3 columns"),
    "too many values": ("t.csv", GOOD.encode() + b"a,b,c,d\n", "4 values for 3 columns"),
    "open quote": ("t.csv", GOOD.encode() + b'"a,b,c\n', "unexpected end of data"),
    "text after a quote": ("t.csv", GOOD.encode() + b'"a"x,b,c\n', "line 3"),
    "not UTF-8": ("t.csv", GOOD.encode() + b"\xff,b,c\n", "line 3: not UTF-8"),
    "UTF-16": ("t.csv", GOOD.encode("utf-16"), "NUL bytes"),
    "NUL": ("t.csv", GOOD.encode() + b"a\0,b,c\n", "NUL bytes"),
    "gzip": ("t.csv", b"\x1f\x8b\x08" + bytes(40), "compressed"),
    "zip": ("t.csv", b"PK\x03\x04" + bytes(40), "compressed"),
    "Parquet named csv": ("t.csv", b"PAR1" + bytes(40), "is a Parquet file"),
    "no Parquet": ("t.parquet", b"hello", "no whole Parquet"),
    "Parquet cut short": ("t.parquet", b"PAR1" + bytes(40), "no whole Parquet"),
    "empty Parquet": ("t.parquet", b"", "no whole Parquet"),
    "long field": ("t.csv", GOOD.encode() + b"a," + b"x" * 10**6 + b",c\n", "field larger"),
    "long label": ("t.csv", GOOD.encode() + b"a," + b"x" * 300 + b",c\n", "300 characters"),
    "empty label": ("t.csv", GOOD.encode() + b"a,,c\n", "label is empty"),
    "empty path": ("t.csv", GOOD.encode() + b",b,c\n", "path is empty"),
    "empty domain": ("t.csv", GOOD.encode() + b"a,b, \n", "domain is empty"),
    "line break in a label": ("t.csv", GOOD.encode() + b'a,"b\nb",c\n', "cannot be printed"),
    "leads out": ("t.csv", GOOD.encode() + b"../x.png,b,c\n", "leads out of"),
    "leads out further in": ("t.csv", GOOD.encode() + b"a/../../x.png,b,c\n", "leads out of"),
    "a folder as path": ("t.csv", b"path,label,domain\nlab/cat,cat,lab\n", "is no file"),
    "a missing absolute path": ("t.csv", b"path,label,domain\n/nowhere/x.png,cat,lab\n", "is no file"),
    "twice, two labels": ("t.csv", GOOD.encode() + b"lab/cat/000.png,dog,lab\n", "lines 2 and 3 with labels"),
    "twice, spelt differently": ("t.csv", GOOD.encode() + b"./lab/cat/000.png,cat,lab\n", "keep one"),
    "unknown split": ("t.csv", b"path,label,domain,split\na,b,c,holdout\n", "unknown split 'holdout'"),
    "empty split": ("t.csv", b"path,label,domain,split\na,b,c,\n", "split is empty"),
    "only test": ("t.csv", b"path,label,domain,split\na,b,c,test\n", "nothing to train on"),
    "only val": ("t.csv", b"path,label,domain,split\na,b,c,val\n", "nothing to train on"),
    "no time": ("t.csv", b"path,label,domain,time\na,b,c,noon\n", "time 'noon' cannot be read"),
    "JSON cut short": ("t.jsonl", b'{"path": "a"\n', "line 1: cut short"),
    "JSON list": ("t.jsonl", b"[1]\n", "no JSON object"),
    "JSON NaN": ("t.jsonl", b'{"path": NaN}\n', "NaN is no JSON"),
    "JSON field twice": ("t.jsonl", b'{"path": 1, "path": 2}\n', "there twice"),
    "JSON too deep": ("t.jsonl", b"[" * 100_000 + b"\n", "line 1"),
    "JSON label list": ("t.jsonl", b'{"path": "a", "label": ["x"], "domain": "c"}\n', "several labels"),
    "JSON label null": ("t.jsonl", b'{"path": "a", "label": null, "domain": "c"}\n', "label is empty"),
    "JSON label object": ("t.jsonl", b'{"path": "a", "label": {}, "domain": "c"}\n', "several labels"),
    "JSON without rows": ("t.jsonl", b"\n\n", "no rows"),
    "TSV with commas": ("t.tsv", GOOD.encode(), "no column 'path'"),
    "weight below 0": ("t.csv", b"path,label,domain,weight\na,b,c,-1\n", "line 2: weight is '-1'"),
    "weight not a number": ("t.csv", b"path,label,domain,weight\na,b,c,heavy\n", "weight is 'heavy'"),
    "weight NaN": ("t.csv", b"path,label,domain,weight\na,b,c,nan\n", "weight is 'nan'"),
    "weight infinite": ("t.csv", b"path,label,domain,weight\na,b,c,inf\n", "weight is 'inf'"),
    "weight missing": ("t.csv", b"path,label,domain,weight\na,b,c,\n", "weight is empty"),
    "long path": ("t.csv", GOOD.encode() + b"x" * 5000 + b",b,c\n", "5,000 characters"),
    "long group": ("t.csv", b"path,label,domain,group\na,b,c," + b"x" * 201 + b"\n", "201 characters"),
    "escape in a domain": ("t.csv", GOOD.encode() + b"a,b,\x1b[31mred\n", "cannot be printed"),
    "lone surrogate": ("t.jsonl", b'{"path": "a", "label": "\\ud800", "domain": "c"}\n', "cannot be printed"),
    "zstd": ("t.parquet", b"\x28\xb5\x2f\xfd" + bytes(40), "compressed"),
    "bzip2": ("t.jsonl", b"BZh9" + bytes(40), "compressed"),
    "header only in capitals": ("t.csv", b"Path,Label,Domain\na,b,c\n", "no column 'path'"),
    "an image named csv": ("t.csv", b"\x89PNG\r\n\x1a\n" + bytes(40), "NUL bytes"),
    "HTML of a log-in page": ("t.csv", b"<!DOCTYPE html>\n<html></html>\n", "no column 'path'"),
    "a Git LFS pointer": ("t.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "no column 'path'"),
    "JSON as one array": ("t.jsonl", b'[{"path": "a", "label": "b", "domain": "c"}]\n', "no JSON object"),
    "JSON spread over lines": ("t.jsonl", b'{\n"path": "a"\n}\n', "line 1: cut short"),
    "JSON number too large": ("t.jsonl", b'{"path": "a", "label": 1e999, "domain": "c"}\n', ""),
    "time of another calendar": ("t.csv", b"path,label,domain,time\na,b,c,2026-13-01\n", "cannot be read"),
    "an unknown protocol": ("t.csv", b"path,label,domain\nnowhere9://x/y.png,b,c\n", "cannot read nowhere9://"),
    "one class": ("t.csv", GOOD.encode(), "one class only"),
}


def test_there_are_sixty_kinds() -> None:
    assert len(BAD) >= 60


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_table_is_one_line_and_exit_status_2(photos: Path, domainwise: Command, kind: str) -> None:
    name, content, message = BAD[kind]
    (photos / name).write_bytes(content)
    bursts = ("--bursts", "time:30s") if b",time\n" in content else ()
    result = domainwise("train", "--data", photos / name, *bursts, "--steps", 1, "--device", "cpu")
    assert result.is_one_line_error and message in result.err, result.err
    assert ("nowhere9" in result.err or name in result.err) and len(result.err) < 900, (
        "it names the file, or the address"
    )


def test_no_table_and_a_folder_named_like_one_are_one_line(tmp_path: Path, domainwise: Command) -> None:
    (tmp_path / "folder.csv").mkdir()
    for name in ("nowhere.csv", "folder.csv"):
        assert domainwise("data", "check", tmp_path / name).is_one_line_error
