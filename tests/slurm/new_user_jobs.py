"""The kinds of jobs of tests/data/new_user/jobs.toml, and the table of them in docs/what-is-found.md.

`python tests/slurm/new_user_jobs.py` prints that table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "new_user" / "jobs.toml"
TITLES = ("The job", "sbatch", "gsub", "After")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of job; the fields are explained in jobs.toml."""

    job: str
    sbatch_does: str
    gsub_does: str
    after: str
    files: Mapping[str, str]
    sbatch: str
    gsub: str
    submit: tuple[str, ...] = ("job.sbatch",)
    prerun: str = ""
    says: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    why_not: tuple[str, ...] = ()
    hurry: str = ""
    inside: bool = False
    torch: bool = False
    config: Mapping[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Writes the files of the user to `directory`, which exists."""
        for name, text in self.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def read_kinds() -> dict[str, Kind]:
    """All kinds of jobs.toml by name, in its order."""
    rows: dict[str, dict[str, Any]] = tomllib.loads(DATA.read_text(encoding="utf-8"))
    shared = rows.pop("shared")["files"]
    return {name: _kind(row, shared) for name, row in rows.items()}


def _kind(row: dict[str, Any], shared: Mapping[str, str]) -> Kind:
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Kind(**{**plain, "files": {**shared, **row["files"]}})


def format_table(kinds: Mapping[str, Kind]) -> str:
    """Markdown, one row for each kind."""
    rows = [TITLES, ("---",) * len(TITLES)]
    rows += [(kind.job, kind.sbatch_does, kind.gsub_does, kind.after) for kind in kinds.values()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    print(format_table(read_kinds()), end="")
