"""Generate the table of docs/dropin.md from slurmwrap/sbatch/option_table.py: each option of sbatch, its releases, and
what gsub does with it. `.venv/bin/python .ci/option_table.py`; tests/test_option_table.py fails when it is outdated.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from between import between

from slurmwrap.sbatch.option_table import (
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

PASSED = "the whole call is passed on to sbatch"
READ = "read, not changed"
CHANGED = "read, may be changed"
ADDED = "may be added"
AS_ASKED = "not changed"

# What gsub does with an option of a job that it handles. It passes all other options to sbatch as they were typed.
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
    "begin": "while the pre-run runs: the later of your value and the end of the grace period",
    "export": f"{READ}; the step counter's variables are added with --count-steps",
    "requeue": f"{READ}; {ADDED} (--retry)",
    "open-mode": f"{READ}; append {ADDED} (--retry)",
    "wait": f"{READ}; the pre-run runs first",
    "quiet": "not passed to sbatch, which would not print the job id; the effect is the same",
    "wrap": "read: it is the script",
    "ignore-pbs": f"{READ}; without it, {PASSED} if the script has #PBS or #BSUB lines",
    "help": "prints sbatch's help, then gsub's",
    "usage": "prints sbatch's usage, and a line about gsub on stderr",
    "version": "prints sbatch's version, and gsub's on stderr",
}


def option_table() -> str:
    """Return all options of all releases since 22.05, in sbatch's order, as a Markdown table."""
    head = ("option", "short", "value", "variables", "Slurm", "gsub")
    return "\n".join(
        (_row(head), _row(["---"] * len(head)), *(_row(_cells(option)) for option in (*SBATCH, WAIT4SWITCH)))
    )


def with_table(page: str) -> str:
    """Return the page with a new table. Raise ValueError if it has no marks."""
    return between(page, BEGIN, END, option_table())


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(option: SbatchOption) -> tuple[str, ...]:
    if option is WAIT4SWITCH:
        return "(variable only)", "", "yes", _variables(option), "", f"{READ}: the time of `--switches`"
    alias = ALIASES.get(option.name)
    treatment = f"as `--{alias}`" if alias else TREATMENT.get(option.name, AS_ASKED)
    if option.name in COMMAND_LINE_ONLY:
        treatment += "; no effect in a script"
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
