"""One name, one meaning: no two classes of the package have the same name."""

import ast
from collections import defaultdict

from documents import ROOT


def test_no_two_classes_share_a_name() -> None:
    homes = defaultdict(list)
    for file in sorted((ROOT / "src" / "domainwise").rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(file.relative_to(ROOT)))
    assert not {name: files for name, files in homes.items() if len(files) > 1}
