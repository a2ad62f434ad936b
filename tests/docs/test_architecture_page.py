"""The page on the architecture names files that exist."""

import re

from tools.coverage_page import ROOT

SOURCE = ROOT / "src" / "holdfast"


def test_every_file_it_names_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    files = [f"/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*.*")]
    named = re.findall(r"[\w/]+\.(?:py|yaml)\b", page)
    assert len(named) > 100
    missing = [
        name
        for name in named
        if not (ROOT / name).exists() and not any(file.endswith(f"/{name}") for file in files)
    ]
    assert missing == []
