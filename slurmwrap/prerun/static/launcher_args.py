"""Parse the command lines of srun and mpirun into the one command that a trial starts. Pure.

The option tables follow srun(1) of Slurm 22.05 to 26.05, pyxis 0.20, mpirun(1) of Open MPI 4 and 5, and MPICH's Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from slurmwrap.fast_dataclasses import dataclass


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SRUN_SHORT_FLAGS = "EHOQXZhklsuvV"
# The value of these letters is optional and must be attached.
_SRUN_SHORT_OPTIONAL = "IK"
# All other long options of srun take a value, attached with '=' or as the next word.
_SRUN_FLAGS = _split_words(
    """
    contiguous debugger-test disable-status exact help hold interactive join label multi-prog no-allocate
    no-shell overcommit overlap oversubscribe preserve-env quiet quit-on-interrupt reboot requeue no-requeue
    share spread-job test-only unbuffered usage use-min-nodes verbose version whole container-mount-home
    no-container-mount-home container-remap-root no-container-remap-root container-entrypoint
    no-container-entrypoint container-writable container-readonly
    """
)
_SRUN_OPTIONAL = _split_words(
    """
    bcast compress exclusive get-user-env immediate kill-on-bad-exit nice no-kill propagate pty resv-ports
    send-libs treewidth-auto x11
    """
)
_SRUN_LONG = {"A": "account", "D": "chdir", "e": "error", "i": "input", "l": "label", "o": "output", "u": "unbuffered"}
_SRUN_LONG |= {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "w": "nodelist", "h": "help", "V": "version"}
# Options that the real srun still gets if a container plugin needs it; sizes, placement and files are left out.
_SRUN_KEPT = ("export", "export-file", "chdir", "mpi", "propagate", "unbuffered", "label", "cpus-per-task")


@dataclass(frozen=True, slots=True, kw_only=True)
class SrunCall:
    """One call of srun, of which a trial starts one task of `command`."""

    command: tuple[str, ...]
    # All options of the user, with long names, in order.
    options: tuple[tuple[str, str | None], ...]

    def value(self, name: str) -> str | None:
        """Return the last value given for `name`; None if it is not set or is a flag."""
        return next((v for n, v in reversed(self.options) if n == name), None)

    def given(self, name: str) -> bool:
        """Return whether the option was given."""
        return any(n == name for n, _ in self.options)

    @property
    def in_container(self) -> bool:
        """Whether a SPANK plugin (pyxis) or an OCI bundle starts the task, for which the real srun is needed."""
        return any(n in ("container", "container-image", "container-name") for n, _ in self.options)


def parse_srun(argv: Sequence[str]) -> SrunCall:
    """Split srun's own options from the command; `argv` does not contain "srun" itself. Never fails."""
    words, options = list(argv), list[tuple[str, str | None]]()
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, attached, value = word[2:].partition("=")
            takes = name not in _SRUN_FLAGS and name not in _SRUN_OPTIONAL
            options.append((name, value if attached else words.pop(0) if takes and words else None))
            continue
        options += _split_short_options(word[1:], words)
    return SrunCall(command=_get_first_program(words), options=tuple(options))


def _get_first_program(words: Sequence[str]) -> tuple[str, ...]:
    # `srun a : b` and `mpirun a : b` start several programs; task 0 belongs to the first one.
    return tuple(words[: words.index(":")] if ":" in words else words)


def count_srun_tasks_of_trial(call: SrunCall, *, per_node: int, nodes: int, gpus: int) -> int:
    """Return how many tasks of `call` the trial starts: those of one of its nodes, at most one per GPU of the trial.

    `per_node`: tasks per node in the trial's allocation, used if the call does not give a number. `nodes`: number of
    nodes of the real job.
    """
    given = _parse_leading_number(call.value("ntasks-per-node"))
    tasks = _parse_leading_number(call.value("ntasks"))
    if given is None and tasks is not None:
        given = -(-tasks // max(1, _parse_leading_number(call.value("nodes")) or nodes))
    return max(1, min(gpus, given or per_node))


def _parse_leading_number(text: str | None) -> int | None:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else None


def _split_short_options(cluster: str, words: list[str]) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    while cluster:
        letter, cluster = cluster[0], cluster[1:]
        name = _SRUN_LONG.get(letter, letter)
        if letter in _SRUN_SHORT_FLAGS:
            found.append((name, None))
        elif letter in _SRUN_SHORT_OPTIONAL or cluster:
            return [*found, (name, cluster.removeprefix("=") or None)]
        else:
            return [*found, (name, words.pop(0) if words else None)]
    return found


def make_one_task_arguments(call: SrunCall, *, mount: str) -> tuple[str, ...]:
    """Return the arguments for the real srun: one task, the container options kept, `mount` visible inside.

    `mount`: "" if the container's own configuration mounts what is needed.
    """
    options = ["--nodes=1", "--ntasks=1"]
    mounts = [f"{mount}:{mount}"] if mount else []
    for name, value in call.options:
        if name == "container-mounts" and value:
            mounts.insert(0, value)
        elif name in _SRUN_KEPT or "container" in name:
            options.append(f"--{name}" if value is None else f"--{name}={value}")
    options += [f"--container-mounts={','.join(mounts)}"] if mounts else []
    return (*options, "--", *call.command)


def parse_export(value: str | None) -> dict[str, str]:
    """Return the assignments in srun's --export=ALL,NAME=VALUE. Variables that it would remove stay set."""
    pairs = (part.partition("=") for part in (value or "").split(","))
    return {name: text for name, equals, text in pairs if equals and re.fullmatch(r"[A-Za-z_]\w*", name)}


def read_first_of_multi_prog(text: str) -> str | None:
    """Return the command line of task 0 in a --multi-prog file (srun(1), MULTIPLE PROGRAM CONFIGURATION)."""
    for line in text.replace("\\\n", " ").splitlines():
        ranks, _, command = line.strip().partition(" ")
        if not line.lstrip().startswith("#") and command and _is_rank_0_in(ranks):
            return command.strip().replace("%t", "0").replace("%o", "0")
    return None


def _is_rank_0_in(ranks: str) -> bool:
    return ranks == "*" or any(part.split("-")[0] == "0" for part in ranks.split(","))


_MPI_VALUES = _split_words(
    """
    n np c N npernode npersocket ppn perhost H host hosts f hostfile machinefile default-hostfile map-by rank-by
    bind-to x wdir wd path prefix oversubscribe-limit timeout report-uri ompi-server mca-file launcher rmk iface
    genvlist envlist cpus-per-proc cpus-per-rank tune app output-filename stdin s personality runtime-options
    with-ft display prtemca-file cpu-set pernode-cpus report-bindings-to hca-list binding-type
    network-interface network-interfaces gloo-timeout-seconds start-timeout num-proc min-np max-np slots-per-host
    ssh-port ssh-identity-file host-discovery-script reset-limit elastic-timeout config-file mpi-args
    fusion-threshold-mb cycle-time-ms cache-capacity timeline-filename log-level blacklist-cooldown-range
    """
)
_MPI_TWO_VALUES = _split_words(
    """
    mca gmca omca pmca prtemca env genv am-mca
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiCall:
    """One call of mpirun, as far as a trial needs it."""

    command: tuple[str, ...]
    # Number of processes of the whole job; None: one per slot.
    processes: int | None = None
    # From `-x NAME=VALUE` and `-genv NAME VALUE`.
    environment: tuple[tuple[str, str], ...] = ()
    chdir: str | None = None


def parse_mpirun(argv: Sequence[str], is_program: Callable[[str], bool]) -> MpiCall:
    """Split mpirun's options from the first program; `argv` does not contain "mpirun" itself.

    An unknown option may have a value, so the command is then the next word for which `is_program` is true.
    """
    words, environment, chdir, processes = list(argv), list[tuple[str, str]](), None, None
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, attached, value = word.lstrip("-").partition("=")
        if name in _MPI_TWO_VALUES:
            pair, words = words[:2], words[2:]
            environment += [(pair[0], pair[1])] if "env" in name and len(pair) == 2 else []
        elif name in _MPI_VALUES:
            value = value if attached else words.pop(0) if words else ""
            chdir = value if name in ("wdir", "wd") else chdir
            processes = _parse_leading_number(value) if name in ("n", "np", "c") else processes
            environment += [_split_assignment(value)] if name == "x" and "=" in value else []
        elif not attached and len(words) > 1 and not words[0].startswith("-") and not is_program(words[0]):
            # This word is the value of an unknown option.
            words.pop(0)
    return MpiCall(command=_get_first_program(words), processes=processes, environment=tuple(environment), chdir=chdir)


def _split_assignment(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value
