"""Test cases as text: `#### name | expected result`, then `--- path` and the content for each file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One job: its files by path and its expected result ("" for none)."""

    name: str
    expected: str
    files: dict[str, str]

    def write(self, directory: Path) -> None:
        for path, content in self.files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(content, encoding="utf-8", newline="")
            if path.endswith(".sh"):
                (directory / path).chmod(0o755)


def read_cases(path: Path) -> list[Case]:
    found = []
    for block in re.split(r"^#### ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
        title, _, rest = block.partition("\n")
        name, _, expected = title.partition(" | ")
        parts = re.split(r"^--- (.+)\n", rest, flags=re.M)[1:]
        contents = (text.replace("<CR>", "\r").replace("<SP>", " ") for text in parts[1::2])
        found.append(Case(name=name, expected=expected, files=dict(zip(parts[::2], contents, strict=True))))
    return found
