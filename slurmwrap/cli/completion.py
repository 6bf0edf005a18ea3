"""`slurmwrap completion`: print or install the completion of gsub and slurmwrap for bash, zsh and fish."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from slurmwrap.diagnosis.taxonomy import DECISIONS, FAILURES
from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.package_files import make_template_environment
from slurmwrap.sbatch.option_table import BASE, OWN, SBATCH, Argument, GsubOption, Release, SbatchOption
from slurmwrap.store.atomic_write import replace_file


# The description of each option in a shell's menu, and where its values come from.
#
# Names, letters, arguments and releases are those of sbatch/option_table.py; this table adds only what a menu needs.
# `values` is one item of a small language that the scripts in templates/completion understand:
#
#     ""            nothing can be suggested (a number, a time, free text)
#     file, dir     a path
#     template      asked of gsub, which knows the site's templates
#     run           a job in the queue, or one of the user's last jobs: asked of Slurm and of gsub
#     partition, qos, account, node, feature, reservation, cluster, license, gres, gpu, job, user, group
#                   asked of Slurm or of the machine
#     dependency, signal
#     dependency, signal
#                   these have a grammar of their own: afterok:ID[:ID...], B:USR1@60
#     choice        one of `choices`; a choice that ends with = or : needs more text
@dataclass(frozen=True, slots=True)
class MenuWord:
    """The description of an option in a menu, and where its values come from."""

    about: str
    values: str = ""
    choices: tuple[str, ...] = ()


def _(about: str, values: str = "", choices: str = "") -> MenuWord:
    return MenuWord(about, values, tuple(choices.split()))


_WHEN = "now+ now today tomorrow midnight noon teatime"
_LIMITS = "ALL NONE AS CORE CPU DATA FSIZE MEMLOCK NOFILE NPROC RSS STACK"
_MAIL = (
    "NONE BEGIN END FAIL REQUEUE ALL INVALID_DEPEND STAGE_OUT TIME_LIMIT TIME_LIMIT_90 TIME_LIMIT_80 TIME_LIMIT_50 "
    "ARRAY_TASKS"
)
_GOVERNORS = "low medium high highm1 conservative ondemand performance powersave schedutil userspace"

SBATCH_WORDS: dict[str, MenuWord] = {
    "account": _("charge this account", "account"),
    "acctg-freq": _("how often usage is sampled", "choice", "task= energy= network= filesystem="),
    "array": _("a job array: 0-15, 1,3,5, 0-99%4"),
    "autocomplete": _("names of options that begin so"),
    "batch": _("features of the node that runs the script", "feature"),
    "bb": _("burst buffer specification"),
    "bbf": _("file with the burst buffer specification", "file"),
    "begin": _("not before this time", "choice", _WHEN),
    "chdir": _("working directory of the job", "dir"),
    "cluster": _("the same as --clusters", ",cluster"),
    "cluster-constraint": _("features of the federated cluster"),
    "clusters": _("the cluster that can start it first", ",cluster"),
    "comment": _("free text kept with the job"),
    "consolidate-segments": _("put segments close together"),
    "constraint": _("features that the nodes must have", "feature"),
    "container": _("OCI container bundle", "dir"),
    "container-id": _("name of the container"),
    "container-type": _("type of the container"),
    "context": _("SELinux context"),
    "contiguous": _("adjacent nodes"),
    "core-spec": _("cores kept for the system"),
    "cores-per-socket": _("least cores of a socket"),
    "cpu-freq": _("frequency or governor of the CPUs", "choice", _GOVERNORS),
    "cpus-per-gpu": _("CPUs for each GPU"),
    "cpus-per-task": _("CPUs for each task"),
    "deadline": _("remove the job if it cannot end by then", "choice", _WHEN),
    "delay-boot": _("minutes to wait for nodes with the features"),
    "dependency": _("wait for other jobs", "dependency"),
    "distribution": _("how tasks go to nodes and sockets", "choice", "block cyclic arbitrary plane="),
    "error": _("file for stderr; %j is the job id", "file"),
    "exclude": _("nodes not to use", ",node"),
    "exclusive": _("share nodes with no other job", "choice", "user mcs"),
    "export": _("variables that the job gets", ",choice", "ALL NONE NIL"),
    "export-file": _("file with variables for the job", "file"),
    "external": _("a job without a script"),
    "extra": _("free text for plugins"),
    "extra-node-info": _("sockets[:cores[:threads]] of the nodes"),
    "get-user-env": _("environment of a login of the user"),
    "gid": _("submit for this group (root)", "group"),
    "gpu-bind": _(
        "which GPU a task sees", "choice", "closest none per_task: single: map_gpu: mask_gpu: verbose,closest"
    ),
    "gpu-freq": _("frequency of the GPUs", ",choice", "low medium high highm1 memory= verbose"),
    "gpus": _("GPUs of the whole job", ",gpu"),
    "gpus-per-node": _("GPUs of each node", ",gpu"),
    "gpus-per-socket": _("GPUs of each socket", ",gpu"),
    "gpus-per-task": _("GPUs of each task", ",gpu"),
    "gres": _("generic resources of each node", ",gres"),
    "gres-flags": _("how generic resources are bound", ",choice", "disable-binding enforce-binding"),
    "help": _("show help"),
    "hint": _("kind of application", "choice", "compute_bound memory_bound multithread nomultithread help"),
    "hold": _("submit held"),
    "ignore-pbs": _("ignore #PBS and #BSUB lines"),
    "input": _("file for stdin", "file"),
    "job-name": _("name of the job"),
    "kill-on-invalid-dep": _("end the job when its dependency cannot come", "choice", "yes no"),
    "licenses": _("licenses that it takes", ",license"),
    "mail-type": _("when to send mail", ",choice", _MAIL),
    "mail-user": _("who gets the mail", "user"),
    "mcs-label": _("label for multi-category security"),
    "mem": _("memory of each node: 180G"),
    "mem-bind": _(
        "how memory is bound", ",choice", "local none map_mem: mask_mem: rank sort nosort prefer verbose quiet"
    ),
    "mem-per-cpu": _("memory for each CPU"),
    "mem-per-gpu": _("memory for each GPU"),
    "mem-update": _("memory later in the job"),
    "mincpus": _("least CPUs of a node"),
    "network": _("what the network is asked for"),
    "nice": _("lower priority by so much"),
    "no-kill": _("go on when a node fails", "choice", "off"),
    "no-requeue": _("never requeue it"),
    "nodefile": _("file with the nodes to use", "file"),
    "nodelist": _("nodes to use", ",node"),
    "nodes": _("how many nodes: 2, 2-4"),
    "ntasks": _("how many tasks"),
    "ntasks-per-core": _("tasks of each core"),
    "ntasks-per-gpu": _("tasks for each GPU"),
    "ntasks-per-node": _("tasks of each node"),
    "ntasks-per-socket": _("tasks of each socket"),
    "ntasks-per-tres": _("tasks for each of a resource"),
    "oom-kill-step": _("kill the whole step on out of memory", "choice", "0 1"),
    "open-mode": _("what becomes of output files that exist", "choice", "append truncate"),
    "output": _("file for stdout; %j is the job id", "file"),
    "overcommit": _("more tasks than CPUs"),
    "oversubscribe": _("share resources with other jobs"),
    "parsable": _("print the job id only"),
    "partition": _("partition to run in", ",partition"),
    "power": _("power management", "choice", "level"),
    "prefer": _("features that the nodes should have", "feature"),
    "priority": _("a priority of its own (operators)"),
    "profile": _("data gathered into HDF5 files", ",choice", "all none energy task filesystem network"),
    "propagate": _("resource limits to take along", ",choice", _LIMITS),
    "qos": _("quality of service", "qos"),
    "quiet": _("print nothing but errors"),
    "reboot": _("reboot the nodes first"),
    "requeue": _("requeue it after node failure or preemption"),
    "reservation": _("use this reservation", ",reservation"),
    "resources": _("predefined resources"),
    "resv-ports": _("communication ports to reserve"),
    "segment": _("nodes in each segment"),
    "signal": _("signal before the time limit: B:USR1@60", "signal"),
    "sockets-per-node": _("least sockets of a node"),
    "spread-job": _("over as many nodes as possible"),
    "spread-segments": _("put segments far apart"),
    "stepmgr": _("manage the steps on the job's nodes"),
    "switches": _("leaf switches at most: 1@30:00"),
    "tasks-per-node": _("the same as --ntasks-per-node"),
    "test-only": _("say when it would start; submit nothing"),
    "thread-spec": _("threads kept for the system"),
    "threads-per-core": _("least threads of a core"),
    "time": _("time limit: minutes, h:m:s, d-h:m:s"),
    "time-min": _("least time limit that will do"),
    "tmp": _("least temporary disk of a node"),
    "tres-bind": _("how resources are bound to tasks", "choice", "gres/gpu:"),
    "tres-per-task": _("resources for each task", ",choice", "cpu= mem= gres/gpu= gres/gpu: license/"),
    "uid": _("submit for this user (root)", "user"),
    "usage": _("show the usage in short"),
    "use-min-nodes": _("the least number of nodes"),
    "verbose": _("say more"),
    "version": _("show Slurm's version"),
    "wait": _("until the job has ended; its exit code"),
    "wait-all-nodes": _("start when all nodes are ready", "choice", "0 1"),
    "wckey": _("workload characterization key"),
    "wrap": _("a command in place of a script"),
}

OWN_WORDS: dict[str, MenuWord] = {
    # Its choices are in the option table.
    "prerun": _("what the pre-run does", "choice"),
    "prerun-gpus": _("GPUs of the pre-run"),
    "prerun-steps": _("training steps that the pre-run must reach"),
    "rehearse": _("whether the pre-run goes on to the end of an epoch", "choice"),
    "resume-args": _("arguments for resuming in the pre-run"),
    "prerun-command": _("what the pre-run runs in place of the script"),
    "count-steps": _("count the steps of the real job"),
    "stop-at": _("stop the running job at a plateau of its loss", "choice", "plateau plateau:0.1%/20%"),
    "stop-when": _("stop the running job when its loss is NaN", "choice"),
    "preemptible": _("it may leave its GPUs at a checkpoint: USR1@120", "signal"),
    "lease": _("after this time it leaves its GPUs to waiting jobs", "choice", "1h 2h 4h 8h"),
    "pack": _("tasks of an array on each GPU", "choice", "auto 2 4 8"),
    "share": _("share the GPU with another job of yours"),
    "resource-profile": _("keep what is learnt under this name"),
    "retry": _("retry failures that are not the job's own"),
    "no-retry": _("never retry it"),
    "retry-on": _("run it again after these: 93,SIGUSR1"),
    "again": _("submit this job, or its failed tasks, again", "run"),
    "no-tune": _("leave CPUs and memory as asked"),
    "no-place": _("leave nodes and switches as asked"),
    "dry-run": _("show the rewritten script; submit nothing"),
    "explain": _("show what is changed, and why"),
    "force": _("submit although a check refuses"),
    "json": _("with --prerun=only: the verdict as JSON"),
    "template": _("make the script from this template", "template"),
    "values": _("with --template=array: a task for each of them"),
    "values-file": _("with --template=array: a task for each line", "file"),
}

# Accepted when typed, but not suggested: sbatch's aliases of options, and what Slurm's own completion uses.
NOT_OFFERED: frozenset[str] = frozenset({"autocomplete", "cluster", "tasks-per-node"})


# A release number later than any release.
NEVER = 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One option as a template uses it. `since` and `until` are releases as a number: 2411 is Slurm 24.11."""

    long: str
    short: str = ""
    argument: Argument = Argument.NONE
    about: str = ""
    # An item of the language above; `choice` is followed by its choices.
    values: str = ""
    # 0: every supported release.
    since: int = 0
    until: int = NEVER
    offered: bool = True

    @property
    def dated(self) -> bool:
        """Whether some supported release lacks the option."""
        return self.since > 0 or self.until < NEVER

    @property
    def names(self) -> tuple[str, ...]:
        """Return its names as they are typed, the letter first."""
        return tuple(name for name in (self.short, self.long) if name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of slurmwrap: its path, subcommands, options, and the kinds of values of its arguments in order."""

    path: tuple[str, ...]
    about: str
    # (name, description) of its subcommands.
    below: tuple[tuple[str, str], ...]
    options: tuple[Offer, ...]
    arguments: tuple[str, ...]
    # Whether the last argument may be repeated.
    repeats: bool

    @property
    def name(self) -> str:
        """Return the command as it is typed after `slurmwrap`."""
        return " ".join(self.path)


def gsub_offers() -> tuple[Offer, ...]:
    """Return every option of sbatch and of gsub."""
    own = (_make_own_offer(option, OWN_WORDS[option.name]) for option in OWN)
    return (*own, *(_make_offer(option, SBATCH_WORDS[option.name]) for option in SBATCH))


def _make_offer(option: SbatchOption, word: MenuWord) -> Offer:
    return Offer(
        long=f"--{option.name}",
        short=f"-{option.short}" if option.short else "",
        argument=option.argument,
        about=word.about,
        values=_format_values(word.values, word.choices),
        since=0 if option.since <= BASE else _number_release(option.since),
        until=_number_release(option.until) if option.until else NEVER,
        offered=option.name not in NOT_OFFERED,
    )


def _make_own_offer(option: GsubOption, word: MenuWord) -> Offer:
    values = _format_values(word.values, option.choices or word.choices)
    return Offer(long=f"--{option.name}", argument=option.argument, about=word.about, values=values)


def _format_values(kind: str, choices: tuple[str, ...]) -> str:
    return " ".join((kind, *choices))


def _number_release(release: Release) -> int:
    return release[0] * 100 + release[1]


# --- slurmwrap ----------------------------------------------------------------------------------------------------

# Kinds of values by option name, where the command tree does not show them.
_KIND_BY_NAME: Mapping[str, str] = {
    "--user": "user",
    "--account": "account",
    "--partition": "partition",
    "--node": ",node",
    "--category": f"choice {' '.join(FAILURES)}",
    "--decision": f"choice {' '.join(DECISIONS)}",
    "--status": "choice suspect lemon drained ok",
    "--slurm-user": "user",
    "--topology": "choice tree none",
    "--source": "choice prerun epilog import user",
    "--run-times": "choice small gavel",
    "--gpu-demand": "choice single synthetic",
    "--gate": "choice on off",
    "shell": "choice bash zsh fish",
    "node": "node",
}
_KIND_BY_METAVAR: Mapping[str, str] = {
    "DIR": "dir",
    "FILE": "file",
    "FILE…": "file",
    "FILE...": "file",
    "TRACE": "file",
    "NODE": ",node",
    "JOBID": "run",
    "ID|last": "run",
    "[JOB|FINGERPRINT]": "run",
    "KEY|SCRIPT|last": "file",
    "[SBATCH OPTIONS] SCRIPT [ARGUMENTS]": "file",
}


def slurmwrap_commands(root: Any) -> tuple[Command, ...]:
    """Return the command tree under `root` (from typer.main.get_command), parents first."""
    return tuple(_list_commands(root, ()))


def _list_commands(command: Any, path: tuple[str, ...]) -> Iterator[Command]:
    below = {name: one for name, one in getattr(command, "commands", {}).items() if not one.hidden}
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    yield Command(
        path=path,
        about=_get_short_help(command),
        below=tuple((name, _get_short_help(one)) for name, one in below.items()),
        options=(*_list_option_offers(command, shown), Offer(long="--help", short="-h", about="show help")),
        arguments=tuple(_select_value_kind(command, one) for one in arguments),
        repeats=bool(arguments) and arguments[-1].nargs == -1,
    )
    for name, one in below.items():
        yield from _list_commands(one, (*path, name))


def _list_option_offers(command: Any, shown: list[Any]) -> Iterator[Offer]:
    for one in (one for one in shown if one.param_type_name == "option"):
        argument = Argument.NONE if one.is_flag or one.count else Argument.REQUIRED
        short = next((name for name in one.opts if not name.startswith("--")), "")
        about = " ".join((one.help or "").split())
        values = "" if argument is Argument.NONE else _select_value_kind(command, one)
        for long in [name for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]:
            yield Offer(long=long, short=short, argument=argument, about=about, values=values)
            short = ""


def _select_value_kind(command: Any, parameter: Any) -> str:
    """Return where a parameter's values come from: by its name, its metavar, or its type in the signature."""
    for name in (*parameter.opts, parameter.name):
        if name in _KIND_BY_NAME:
            return _KIND_BY_NAME[name]
    if parameter.metavar in _KIND_BY_METAVAR:
        return _KIND_BY_METAVAR[parameter.metavar]
    if "--dir" in parameter.opts or any(name.endswith("-dir") for name in parameter.opts):
        return "dir"
    signature = inspect.signature(inspect.unwrap(command.callback)).parameters if command.callback else {}
    annotation = str(signature[parameter.name].annotation) if parameter.name in signature else ""
    return "file" if "Path" in annotation else ""


def _get_short_help(command: Any) -> str:
    """Return the command's short help, or else the first paragraph of its help, without the final full stop."""
    text: str = command.short_help or (command.help or "").partition("\n\n")[0]
    return " ".join(text.split()).removesuffix(".")


# Identifies a file that slurmwrap wrote and may replace.
MARK = "Made by: slurmwrap completion"


class Shell(StrEnum):
    """The supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionPlace:
    """Where a user's own completions are, which file serves which command, and what the user still has to do."""

    directory: Path
    # Command -> file name.
    names: Mapping[str, str]
    then: str


def completion(
    ctx: typer.Context,
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
    install: Annotated[
        bool, typer.Option("--install", help="Install it in your home, where your shell looks for it.")
    ] = False,
    sbatch: Annotated[
        bool, typer.Option("--sbatch", help="Complete sbatch in the same way, where it is gsub by another name.")
    ] = False,
) -> None:
    """Complete options, partitions, nodes, jobs … of gsub on TAB.

    \b
    Examples:  source <(slurmwrap completion bash)
               slurmwrap completion fish --install
    For everybody: docs/completion.md says where the files go.
    """
    text = render_script(shell, ctx.find_root().command, sbatch=sbatch)
    if not install:
        typer.echo(text, nl=False)
        return
    place = find_completion_place(shell, os.environ)
    for path in write_completion_files(place, text, sbatch=sbatch):
        typer.echo(f"Written: {path}")
    typer.echo(place.then)


def render_script(shell: Shell, root: Any, *, sbatch: bool = False) -> str:
    """Return the whole script. `root` is slurmwrap's command tree."""
    # "{#" occurs in shell code, so comments have other delimiters; every text passes through the filter of its shell.
    environment = make_template_environment("completion", comment_start_string="<#--", comment_end_string="--#>")
    environment.filters |= {"sh": _quote_sh, "zsh": _quote_zsh, "fish": _quote_fish}
    return environment.get_template(f"{shell.value}.j2").render(
        mark=f"{MARK} {shell.value}{' --sbatch' if sbatch else ''}",
        offers=gsub_offers(),
        commands=slurmwrap_commands(root),
        gsubs=["gsub", "sbatch"] if sbatch else ["gsub"],
    )


def _quote_sh(text: str) -> str:
    # Quote every text, because zsh interprets unquoted words further.
    return "'" + text.replace("'", "'\\''") + "'"


def _quote_zsh(text: str) -> str:
    """Quote part of a spec of zsh's _arguments, where \\ : [ ] have a meaning; the whole spec is quoted as well."""
    return "".join(f"\\{c}" if c in "\\:[]" else c for c in text).replace("'", "'\\''")


def _quote_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# --- putting it in place ----------------------------------------------------------------------------------------------


def find_completion_place(shell: Shell, environ: Mapping[str, str]) -> CompletionPlace:
    """Return where the shell looks for completions that a user added."""
    home = Path(environ.get("HOME") or Path.home())
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    if shell is Shell.BASH:
        return CompletionPlace(
            directory=data / "bash-completion/completions",
            names={"gsub": "gsub", "slurmwrap": "slurmwrap", "sbatch": "sbatch"},
            then="New shells use it if the package bash-completion is installed; otherwise add to ~/.bashrc:\n"
            "  source <(slurmwrap completion bash)",
        )
    if shell is Shell.ZSH:
        directory = data / "zsh/site-functions"
        return CompletionPlace(
            directory=directory,
            names={"gsub": "_gsub"},
            then="If it is not there yet, add to ~/.zshrc before the line with compinit:\n"
            f"  fpath=({shlex.quote(str(directory))} $fpath)\n"
            "and start a new shell (after an update of this file: rm -f ~/.zcompdump).",
        )
    return CompletionPlace(
        directory=config / "fish/completions",
        names={"gsub": "gsub.fish", "slurmwrap": "slurmwrap.fish", "sbatch": "sbatch.fish"},
        then="New shells use it.",
    )


def write_completion_files(place: CompletionPlace, text: str, *, sbatch: bool = False) -> list[Path]:
    """Write the files. Raise SlurmwrapError and write nothing if a file exists that slurmwrap did not write."""
    paths = [place.directory / name for command, name in place.names.items() if sbatch or command != "sbatch"]
    for path in paths:
        if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
            raise SlurmwrapError(
                f"{path} exists and was not written by slurmwrap",
                hint="move it away, or use the script without --install",
            )
    try:
        place.directory.mkdir(parents=True, exist_ok=True)
        for path in paths:
            # Replaced atomically: a shell that starts meanwhile reads the old file or the new one.
            replace_file(path, text, 0o644)
    except OSError as error:
        raise SlurmwrapError(f"cannot write {error.filename}: {error.strerror}") from error
    return paths
