"""`slurmwrap lab`: start, show and stop a lab, a real Slurm with many nodes and simulated GPUs on this machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from slurmwrap.errors import SlurmwrapError
from slurmwrap.json_output import format_json_document
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_spec import DEFAULT_BASE_PORT, LabSpec, cluster_of
from slurmwrap.lab.lab_startup import up as bring_up
from slurmwrap.lab.lab_state import append_kernel_line, environment_lines, text
from slurmwrap.lab.lab_state import down as take_down
from slurmwrap.lab.lab_state import status as read_status
from slurmwrap.lab.machine import default_directory

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="A real Slurm with many nodes and GPUs on this machine, to try jobs and hooks before the cluster sees them.",
)

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="Directory of the lab.  [default: /var/lib/slurmwrap-lab as root, else ~/.local/share/…]"
    ),
]


@app.command()
def up(
    directory: Directory = None,
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 8,
    gpus: Annotated[int, typer.Option(help="GPUs per node.")] = 8,
    shards: Annotated[int, typer.Option(help="Shards of GPUs per node (gres/shard).")] = 0,
    cpus: Annotated[int, typer.Option(help="CPUs per node (invented).")] = 32,
    threads: Annotated[int, typer.Option(help="CPUs per core: 2 as with hyper-threading.")] = 1,
    mem_mib: Annotated[int, typer.Option(help="Memory per node in MiB (invented).")] = 256_000,
    switches: Annotated[int, typer.Option(help="Leaf switches under one core switch.")] = 2,
    topology: Annotated[str, typer.Option(help="Slurm's topology plugin: tree or none.")] = "tree",
    slurm_user: Annotated[str | None, typer.Option(help="User that runs slurmctld.  [default: you]")] = None,
    base_port: Annotated[int, typer.Option(help="slurmctld's port; the nodes take those above.")] = DEFAULT_BASE_PORT,
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="ClusterName.  [default: lab, or made of --dir: labs are not mixed up]")
    ] = "",
    accounting: Annotated[
        bool, typer.Option("--accounting", help="slurmdbd and its own MariaDB; limits are enforced.")
    ] = False,
    priority: Annotated[
        str, typer.Option(help="Slurm's priority plugin: basic or multifactor (with --accounting: with fair share).")
    ] = "basic",
    act: Annotated[
        str, typer.Option(metavar="RULES", help="Of the rules order and limit, those that act: order,limit.")
    ] = "",
    reconcile: Annotated[bool, typer.Option("--reconcile/--no-reconcile", help="Run slurmwrap's reconciler.")] = True,
    hooks: Annotated[bool, typer.Option("--hooks/--no-hooks", hidden=True)] = True,
) -> None:
    """Start a lab and wait until every node is idle.

    Examples:  slurmwrap lab up  ·  slurmwrap lab up --nodes 2 --gpus 4 --dir /tmp/lab --base-port 27000
    """
    lab_directory = _resolve_directory(directory)
    spec = LabSpec(
        directory=lab_directory, nodes=nodes, gpus=gpus, shards=shards, cpus=cpus, threads=threads,
        mem_mib=mem_mib, switches=switches, topology=topology, slurm_user=slurm_user or _own_name(),
        base_port=base_port,
        cluster=cluster or cluster_of(lab_directory), accounting=accounting, priority=priority,
        act=tuple(filter(None, act.split(","))),
    )  # fmt: skip
    began = time.monotonic()
    # Exit normally on SIGTERM, so that the processes started so far are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _or_exit(lambda: bring_up(spec, _print_message, hooks=hooks, reconcile=reconcile))
    _print_message(f"Up after {time.monotonic() - began:.1f} s")
    typer.echo(_or_exit(lambda: text(read_status(LabDirectories(spec.directory)))))
    flag = "" if directory is None else f" --dir {spec.directory}"
    _print_message(f'Use it:  eval "$(slurmwrap lab env{flag})"      End it:  slurmwrap lab down{flag}')


@app.command()
def status(
    directory: Directory = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show whether the lab runs, its nodes, and what is enforced. Exit code 7 when it does not run.

    Examples:  slurmwrap lab status  ·  slurmwrap lab status --json | jq .nodes
    """
    found = _or_exit(lambda: read_status(LabDirectories(_resolve_directory(directory))))
    typer.echo(format_json_document("lab", found.to_plain()) if as_json else text(found))
    if not (found.state.running and found.state.ready):
        raise typer.Exit(7)


@app.command()
def down(directory: Directory = None) -> None:
    """Stop the lab and its jobs, and remove it from the machine.

    Example:  slurmwrap lab down
    """
    layout = LabDirectories(_resolve_directory(directory))
    ended = _or_exit(lambda: take_down(layout))
    _print_message(f"Lab in {layout.root} is gone ({ended} processes ended)")


@app.command()
def env(directory: Directory = None) -> None:
    """Print the variables that make Slurm's commands and slurmwrap use the lab.

    Example:  eval "$(slurmwrap lab env)" && sinfo
    """
    layout = LabDirectories(_resolve_directory(directory))
    if not _or_exit(lambda: read_status(layout)).state.running:
        _print_message(f"slurmwrap lab: the lab in {layout.root} is not running\n  `slurmwrap lab up` starts it again")
        raise typer.Exit(7)
    for line in environment_lines(layout, os.environ.get("PATH", os.defpath)):
        typer.echo(line)


@app.command()
def kernel(node: str, line: str, directory: Directory = None) -> None:
    """Append a line to a node's simulated kernel log, as if the node's kernel had written it.

    Example:  slurmwrap lab kernel n3 'NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus.'
    """
    _or_exit(lambda: append_kernel_line(LabDirectories(_resolve_directory(directory)), node, line))


def _resolve_directory(directory: Path | None) -> Path:
    return (default_directory() if directory is None else directory).resolve()


def _own_name() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def _print_message(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _or_exit(action: Callable[[], T]) -> T:
    try:
        return action()
    except SlurmwrapError as error:
        _print_message(f"slurmwrap lab: {error}" + (f"\n  {error.hint}" if error.hint else ""))
        raise typer.Exit(error.exit_code) from error


if __name__ == "__main__":
    app()
