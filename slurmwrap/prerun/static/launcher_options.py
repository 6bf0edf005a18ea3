"""Options of srun and torchrun that neither knows: compares a launcher's words with tables of its options. Pure.

Site plugins add options to srun (SPANK), and other releases have others, so only a name that looks like a known one
misspelt is told, as a warning. After srun(1) of Slurm 22.05 to 25.11.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from slurmwrap.inject import slurmwrap_launch
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.launcher_args import parse_srun
from slurmwrap.prerun.static.shell_parser import UNKNOWN, RawWord
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.suggestions import find_nearest
from slurmwrap.prerun.static.word_tables import split_word_table
from slurmwrap.sbatch.options import BY_NAME

_MPI_LIST_S = 0.5  # deadline of `srun --mpi=list`: it loads plugins and asks no controller
_SRUN_ONLY = split_word_table(
    """accel-bind bcast bcast-exclude compress cpu-bind cpu_bind disable-status epilog exact external interactive jobid
    kill-on-bad-exit label launch-cmd launcher-opts mem-bind mem_bind mpi msg-timeout multi-prog network no-allocate
    overlap preserve-env prolog pty quit-on-interrupt relative resv-ports send-libs slurmd-debug task-epilog task-prolog
    test-only threads threads-per-core treewidth tres-bind tres-per-task unbuffered verbose whole stepmgr segment
    container container-id container-image container-mounts container-workdir container-name container-save
    container-mount-home no-container-mount-home container-remap-root container-entrypoint container-writable
    container-readonly container-env environment join debugger-test exclusive gpu-bind gpu-freq gpus-per-task help
    usage version input output error chdir mem nodes ntasks cpus-per-task time"""
)


def check_launcher_options(started: Sequence[StartedProgram], desk: StaticContext) -> Iterator[Finding]:
    """One finding for each option that looks misspelt."""
    known = frozenset(BY_NAME) | _SRUN_ONLY
    for one in started:
        words = one.entry.whole if one.entry is not None else ()
        if words and os.path.basename(words[0]) == "srun":  # noqa: PTH119
            options = (name for name, _ in parse_srun(words[1:]).options if len(name) > 1)
            yield from _make_option_findings(options, known, "srun", one, desk)
        yield from _make_option_findings(_list_launcher_names(words), _list_known_options(words), "the launcher", one, desk)


_ALWAYS_KNOWN = ("list", "none", "openmpi")  # openmpi: slurmd's old name for none, which the list leaves out


def check_mpi_types(started: Sequence[StartedProgram], desk: StaticContext) -> Iterator[Finding]:
    """`srun --mpi=TYPE` with a type that the srun of this machine does not have. Asks it, for such a script alone."""
    for one in started:
        words = one.entry.whole if one.entry is not None else tuple(w.literal or UNKNOWN for w in _get_raw_words(one))
        named = parse_srun(words[1:]).value("mpi") if words and os.path.basename(words[0]) == "srun" else None  # noqa: PTH119
        if not named or UNKNOWN in named or named in _ALWAYS_KNOWN:
            continue
        known = _list_mpi_types(desk)
        if known and named not in known:
            yield Finding(
                severity=Severity.WARNING,
                message=f"srun --mpi={named}: the srun of this machine has {', '.join(known)}",
                file=desk.where(one.entry) if one.entry is not None else desk.script,
                line=one.line,
                fix=f"did you mean --mpi={find_nearest(named, known, 0.5) or known[-1]}? srun --mpi=list shows them",
                category="mpi_error",
            )
            return


def _get_raw_words(one: StartedProgram) -> Sequence[RawWord]:
    return one.raw.words if one.raw is not None else ()


def _list_mpi_types(desk: StaticContext) -> tuple[str, ...]:
    """As `srun --mpi=list` names them (22.05 to 25.11: one in each indented line), () when it does not answer."""
    if desk.left() < _MPI_LIST_S:
        return ()
    answer = desk.run(["srun", "--mpi=list"], timeout_s=_MPI_LIST_S)
    said = (answer.stdout + b"\n" + answer.stderr).decode("utf-8", "replace")
    if answer.exit_code != 0 or "MPI" not in said:
        return ()
    lines = [line.removeprefix("srun: ") for line in said.splitlines()]
    types = [line.strip() for line in lines if re.fullmatch(r"\s*[a-z][\w.]*", line)]
    more = [word for line in lines if "specific" in line for word in re.findall(r"\bpmix_v\w+", line)]
    return tuple(dict.fromkeys((*types, *more)))


def _launch_at(words: Sequence[str]) -> tuple[str, int] | None:
    for at, word in enumerate(words):
        if os.path.basename(word) in ("torchrun", "accelerate", "deepspeed"):  # noqa: PTH119
            found = slurmwrap_launch.launcher(list(words[at:]))
        elif word == "-m" and at + 1 < len(words):
            found = slurmwrap_launch.launcher(list(words[at:]), words[at + 1])
            found = (found[0], 2) if found else None
        else:
            continue
        if found:
            return found[0], at + found[1]
    return None


def _list_launcher_names(words: Sequence[str]) -> list[str]:
    found = _launch_at(words)
    if found is None:
        return []
    pairs, _ = slurmwrap_launch.split(found[0], list(words[found[1] :]))
    # An option that we do not know may have taken the program for its value; what follows is then not the launcher's.
    return [name for name, given in pairs if given[0].startswith("--")]


def _list_known_options(words: Sequence[str]) -> frozenset[str]:
    found = _launch_at(words)
    if found is None:
        return frozenset()
    return slurmwrap_launch.FLAGS[found[0]] | slurmwrap_launch.DROPPED[found[0]] | slurmwrap_launch.KEPT


def _make_option_findings(
    names: Iterator[str] | list[str], known: frozenset[str], program: str, one: StartedProgram, desk: StaticContext
) -> Iterator[Finding]:
    for name in names:
        if name in known or UNKNOWN in name or any(k.startswith(name) for k in known):
            continue
        near = find_nearest(name, known, 0.8)
        if near:
            shown = near.replace("_", "-") if program == "srun" else near
            yield Finding(
                severity=Severity.WARNING,
                message=f"{program} has no option --{name}",
                file=desk.script,
                line=one.line,
                fix=f"did you mean --{shown}?",
                category="semantic_error",
            )
