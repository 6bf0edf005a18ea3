"""Writes the table of docs/dropin.md anew out of slurmwrap/sbatch/options.py: each option of sbatch, where it comes
from, what gsub does with it. `.venv/bin/python .ci/option_table.py`; tests/test_option_table.py tells when it is due.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from between import between

from slurmwrap.sbatch.options import (
    ALIASES,
    BASE,
    COMMAND_LINE_ONLY,
    NONE,
    OPTIONAL,
    SBATCH,
    WAIT4SWITCH,
    Release,
    SbatchOption,
)

PAGE = Path(__file__).parents[1] / "docs" / "dropin.md"
BEGIN, END = "<!-- options -->", "<!-- end of options -->"

PASSED = "the whole call is sbatch's"
READ = "read, left as asked"
CHANGED = "read, may be changed"
ADDED = "may be added"
GATED = "moved while the pre-run runs"
AS_ASKED = "left as asked"

# What gsub does with an option where it takes the job. All others go to sbatch as they were typed.
TREATMENT: dict[str, str] = {
    **dict.fromkeys(("uid", "gid", "clusters", "test-only", "external", "autocomplete"), PASSED),
    **dict.fromkeys(("nodes", "cpus-per-task", "cpus-per-gpu", "mem", "mem-per-cpu", "mem-per-gpu"), CHANGED),
    **dict.fromkeys(
        ("exclude", "switches", "nodelist", "segment", "constraint", "prefer"), f"{READ}; {ADDED} (placement)"
    ),
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres", "tres-per-task"), READ),
    **dict.fromkeys(("ntasks", "ntasks-per-node", "sockets-per-node", "time", "partition", "exclusive"), READ),
    **dict.fromkeys(("nodefile", "reservation", "contiguous", "cluster-constraint", "batch", "spread-job"), READ),
    **dict.fromkeys(("dependency", "hold", "array", "chdir", "job-name", "output", "error", "qos", "account"), READ),
    **dict.fromkeys(("export-file", "get-user-env", "oversubscribe", "no-requeue", "verbose", "parsable"), READ),
    "begin": f"{GATED}: the later of it and the grace",
    "export": f"{READ}; the step counter's variables are added with --count-steps",
    "requeue": f"{READ}; {ADDED} (--retry)",
    "open-mode": f"{READ}; append {ADDED} (--retry)",
    "wait": f"{READ}: the pre-run goes first",
    "quiet": "kept from sbatch, which would not tell the job's id; its effect is the same",
    "wrap": "read: it is the script",
    "ignore-pbs": f"{READ}: else #PBS and #BSUB lines make {PASSED}",
    "help": "sbatch's own, then gsub's",
    "usage": "sbatch's own; a line about gsub on stderr",
    "version": "sbatch's own; gsub's on stderr",
}


def option_table() -> str:
    """All options of all releases from 22.05 on, in sbatch's order, as a table in Markdown."""
    head = ("option", "short", "value", "variables", "Slurm", "gsub")
    return "\n".join(
        (_row(head), _row(["---"] * len(head)), *(_row(_cells(option)) for option in (*SBATCH, WAIT4SWITCH)))
    )


def with_table(page: str) -> str:
    """The page with the table written anew. ValueError where it has no marks."""
    return between(page, BEGIN, END, option_table())


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(option: SbatchOption) -> tuple[str, ...]:
    if option is WAIT4SWITCH:
        return "(a variable alone)", "", "yes", _variables(option), "", f"{READ}: the time of `--switches`"
    alias = ALIASES.get(option.name)
    treatment = f"as `--{alias}`" if alias else TREATMENT.get(option.name, AS_ASKED)
    if option.name in COMMAND_LINE_ONLY:
        treatment += "; in a script it does nothing"
    short = f"`-{option.short}`" if option.short else ""
    return f"`--{option.name}`", short, _value(option), _variables(option), _releases(option), treatment


def _value(option: SbatchOption) -> str:
    if option.changed is None:
        return _VALUES[option.argument]
    at, later = option.changed
    return f"{_VALUES[option.argument]}; {_VALUES[later]} from {_number(at)}"


_VALUES = {argument: argument.value for argument in (NONE, OPTIONAL)} | {
    option.argument: "yes" for option in SBATCH if option.argument not in (NONE, OPTIONAL)
}


def _variables(option: SbatchOption) -> str:
    since = f" (from {_number(option.variables_since)})" if option.variables_since else ""
    return ", ".join(f"`{variable}`" for variable in option.variables) + since


def _releases(option: SbatchOption) -> str:
    return ", ".join(_times(option))


def _times(option: SbatchOption) -> Iterator[str]:
    if option.since != BASE:
        yield f"from {_number(option.since)}"
    if option.until is not None:
        yield f"until {_number(_before(option.until))}"
    if option.missing:
        yield f"not in {', '.join(map(_number, option.missing))}"


_RELEASES: tuple[Release, ...] = ((22, 5), (23, 2), (23, 11), (24, 5), (24, 11), (25, 5), (25, 11), (26, 5))


def _before(release: Release) -> Release:
    return _RELEASES[_RELEASES.index(release) - 1]


def _number(release: Release) -> str:
    return f"{release[0]}.{release[1]:02}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
