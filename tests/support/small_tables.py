"""Tables of the files of a folder, in every format."""

import csv
import json
from pathlib import Path

Row = dict[str, object]


def rows_of(photos: Path) -> list[Row]:
    """The files of a folder as rows: the columns path, label and domain."""
    files = sorted(photos.glob("*/*/*.png"))
    return [{"path": str(f.relative_to(photos)), "label": f.parent.name, "domain": f.parent.parent.name} for f in files]


def write(file: Path, rows: list[Row]) -> Path:
    if file.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with file.open("w", newline="") as text:
            table = csv.DictWriter(text, list(rows[0]), delimiter="\t" if file.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows(rows)
    return file
