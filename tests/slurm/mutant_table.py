"""The bugs of tests/scripts/mutants as the tables of docs/prerun-reference.md.

`python tests/slurm/mutant_table.py` prints them.

test_mutants.py checks the stage of each bug in the table; test_scripts.py checks the good scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainings import Mutant, mutants

KINDS = {
    "shell": "the shell script",
    "launch": "options of Slurm and of launchers, the environment",
    "paths": "paths and permissions",
    "imports": "Python that cannot be loaded",
    "options": "options of the program",
    "config": "configuration files",
    "data": "data and checkpoints",
    "model": "the model and the loop",
    "torch": "wrong use of torch",
    "framework": "Lightning, HF Trainer, Keras, JAX",
    "late": "after the third step",
    "peers": "only with several ranks, or no bug",
}
_STAGES = ("static", "trial", "none")


def table(found: Mapping[str, Mutant]) -> str:
    """Markdown: how many bugs of each kind each stage stops, then all bugs."""
    return f"{_sums(found.values())}\n{_rows(found.values())}"


def _sums(found: Iterable[Mutant]) -> str:
    mutants = list(found)
    lines = ["| bugs in | number | static | trial | none |", "|---|---|---|---|---|"]
    for kind, words in KINDS.items():
        lines.append(_sum(words, [m for m in mutants if m.kind == kind]))
    return "\n".join([*lines, _sum("**all**", mutants)]) + "\n"


def _sum(words: str, mutants: list[Mutant]) -> str:
    counts = (sum(m.stage == stage for m in mutants) for stage in _STAGES)
    return f"| {words} | {len(mutants)} | " + " | ".join(str(count or "") for count in counts) + " |"


def _rows(found: Iterable[Mutant]) -> str:
    ordered = sorted(found, key=lambda m: list(KINDS).index(m.kind))
    lines = [f"| {m.bug.replace('|', '&#124;')} | {_stopped_by(m)} |" for m in ordered]
    return "\n".join(["| bug | stopped by |", "|---|---|", *lines]) + "\n"


def _stopped_by(mutant: Mutant) -> str:
    remarks = [word for word in (mutant.verdict, "static warns" if mutant.warned else "") if word]
    return f"{mutant.stage} ({', '.join(remarks)})" if remarks else mutant.stage


if __name__ == "__main__":
    print(table(mutants()))
