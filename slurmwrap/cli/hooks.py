"""`slurmwrap hooks`: plan, install, check and uninstall the hooks, on the controller and on the nodes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from slurmwrap.cli import terminal
from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError
from slurmwrap.install.install_output import make_lines_harmless, print_test_results
from slurmwrap.install.manifest import FILE
from slurmwrap.json_output import format_json_document

ROOT = Path("/")
Edit = Annotated[
    bool | None,
    typer.Option("--edit/--no-edit", help="no: slurm.conf is your configuration management's; the lines are shown."),
]
Conf = Annotated[
    Path | None,
    typer.Option("--slurm-conf", metavar="FILE", help="[default: as Slurm finds it]"),
]
Shared = Annotated[str, typer.Option(metavar="DIR", help="Shared by nodes and controller: DIR/spool, DIR/published.")]
Directory = Annotated[
    str | None,
    typer.Option("--directory", metavar="DIR", help="Directory of the hooks; on a local disk, writable by root only."),
]
State = Annotated[
    str | None, typer.Option("--state-dir", metavar="DIR", help="Owned by SlurmUser, on the controller's disk.")
]
NodeState = Annotated[
    str | None, typer.Option("--node-state-dir", metavar="DIR", help="Owned by root on each node; %n: the node's name.")
]
ConfigFile = Annotated[str | None, typer.Option("--config", metavar="FILE", help="The site's configuration.")]
Units = Annotated[str | None, typer.Option("--unit-dir", metavar="DIR", help="Directory of systemd's units.")]
Command = Annotated[
    str | None, typer.Option("--command", metavar="FILE", help="The slurmwrap that the services start.")
]
Python = Annotated[str | None, typer.Option("--python", metavar="FILE", help="3.6 or newer, on the nodes' own disks.")]
Munge = Annotated[str | None, typer.Option("--munge", metavar="FILE", help="The munge command on the nodes.")]
Kernel = Annotated[str | None, typer.Option("--kernel-log", help="/dev/kmsg, journal or file:PATH.")]
Nvidia = Annotated[
    str | None, typer.Option("--nvidia-proc", metavar="DIR", help="Directory of NVIDIA's driver in /proc.")
]
Gate = Annotated[str | None, typer.Option("--gate", help="on: the Prolog refuses nodes with a conclusive fault; off.")]
Filter = Annotated[
    str | None,
    typer.Option("--cli-filter", help="Inform users of plain sbatch about gsub: off, files or on (docs/install.md)."),
]
Become = Annotated[
    bool | None,
    typer.Option("--become-users/--no-become-users", help="The reconciler may read a user's files as that user."),
]
Root = Annotated[
    Path, typer.Option("--root", metavar="DIR", help="Install into an image: files only, no Slurm is asked.")
]
Release = Annotated[str, typer.Option("--slurm-release", metavar="YY.MM", help="Release of the image's Slurm.")]
NoSystemd = Annotated[
    bool, typer.Option("--no-systemd", help="Install no units; docs/install.md names what to run instead.")
]
Nodes = Annotated[
    str,
    typer.Option(
        "--nodes",
        metavar="LIST",
        help="Nodes that get the files: all, none, or a host list.  [default: those that do not have them]",
    ),
]
Manifest = Annotated[Path, typer.Option("--manifest", metavar="FILE", help="The file that records what was installed.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]
NoReconfigure = Annotated[bool, typer.Option("--no-reconfigure", help="Do not run `scontrol reconfigure`.")]
Patience = Annotated[float, typer.Option("--patience", min=1.0, help="Seconds to wait for a job on a node.")]


# The commands of `slurmwrap hooks`. Each calls install/install_workflow.py and prints the result.
app = typer.Typer(help="The Prolog, Epilog and EpilogSlurmctld that observe jobs.", no_args_is_help=True)


@app.command()
def plan(
    slurm_conf: Conf = None,
    shared: Shared = "",
    directory: Directory = None,
    state_dir: State = None,
    node_state_dir: NodeState = None,
    config: ConfigFile = None,
    unit_dir: Units = None,
    command: Command = None,
    python: Python = None,
    munge: Munge = None,
    kernel_log: Kernel = None,
    nvidia_proc: Nvidia = None,
    gate: Gate = None,
    cli_filter: Filter = None,
    become_users: Become = None,
    edit: Edit = None,
    root: Root = ROOT,
    slurm_release: Release = "",
    no_systemd: NoSystemd = False,
    nodes: Nodes = "",
    no_reconfigure: NoReconfigure = False,
    manifest: Manifest = FILE,
    as_json: Json = False,
) -> None:
    """Show exactly what `install` would do: the diff of slurm.conf, every file and directory. Writes nothing.

    Exit code 1 if there is a conflict.

    \b
    Examples:
      slurmwrap hooks plan --shared /shared/slurmwrap
      slurmwrap hooks plan --json | jq -r .diff
    """
    from slurmwrap.install import install_output, install_workflow

    where, made, names = _plan_installation(locals())
    steps = install_workflow.describe_steps(
        made, where, names, by_hand=nodes == install_workflow.NONE, test=where.system.alive
    )
    if as_json:
        typer.echo(format_json_document("hooks_plan", install_output.plan_json(made, steps)))
    else:
        typer.echo(make_lines_harmless(install_output.plan_text(made, steps, terminal.choose_painter())))
    sys.exit(1 if made.conflicts else 0)


@app.command()
def install(
    slurm_conf: Conf = None,
    shared: Shared = "",
    directory: Directory = None,
    state_dir: State = None,
    node_state_dir: NodeState = None,
    config: ConfigFile = None,
    unit_dir: Units = None,
    command: Command = None,
    python: Python = None,
    munge: Munge = None,
    kernel_log: Kernel = None,
    nvidia_proc: Nvidia = None,
    gate: Gate = None,
    cli_filter: Filter = None,
    become_users: Become = None,
    edit: Edit = None,
    root: Root = ROOT,
    slurm_release: Release = "",
    no_systemd: NoSystemd = False,
    nodes: Nodes = "",
    skip: Annotated[str, typer.Option(help="Nodes to leave out; Slurm drains them at their first job.")] = "",
    no_reconfigure: NoReconfigure = False,
    patience: Patience = 300.0,
    test: Annotated[bool, typer.Option("--test/--no-test", help="Run a test job at the end.")] = True,
    test_node: Annotated[
        str, typer.Option(metavar="LIST", help="Nodes to test.  [default: one node per partition]")
    ] = "",
    test_user: Annotated[str, typer.Option(metavar="USER", help="User of the test job.  [default: root]")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    manifest: Manifest = FILE,
) -> None:
    """Do what `plan` shows, then run a test job. Run it again after an upgrade, an interruption, or for a new node.

    Files that slurmwrap did not write are never overwritten. slurm.conf is edited last, when every node has the files.

    \b
    Examples:
      slurmwrap hooks install --shared /shared/slurmwrap
      slurmwrap hooks install --nodes node[17-20]   after these were set up anew
      slurmwrap hooks install --nodes none          your own tools bring the files
    """
    from slurmwrap.install import check_installation, install_output, install_workflow
    from slurmwrap.model import hostlist

    where, made, names = _plan_installation(locals())
    steps = install_workflow.describe_steps(
        made, where, names, by_hand=nodes == install_workflow.NONE, test=test and where.system.alive
    )
    typer.echo(make_lines_harmless(install_output.plan_text(made, steps, terminal.choose_painter())))
    if made.conflicts:
        sys.exit(1)
    if not yes and sys.stdin.isatty() and not typer.confirm("\nGo on?"):
        sys.exit(1)
    done = install_workflow.install(where, made, names, patience, hostlist.expand(skip) if skip else ())
    where.console.say("installed")
    if not test or not where.system.alive:
        return
    if no_reconfigure or install_workflow.lacks_conf_lines(made):
        where.console.say("no test job: slurmctld has not read slurm.conf. Then: slurmwrap hooks check")
        return
    looked = check_installation.check_conf_on_nodes(
        where,
        done,
        check_installation.select_nodes_to_check(made, done, names),
        min(patience, check_installation.LOOK_S),
    )
    check_installation.print_node_checks(looked, where.console)
    tried = install_workflow.test_jobs(
        where, made, hostlist.expand(test_node) if test_node else (), test_user, patience
    )
    print_test_results(tried, where.console, install_workflow.RESTART if made.restart else "")


@app.command()
def bundle(
    to: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="Unpack it on each node: tar -C / -xzf FILE")],
    controller: Annotated[
        bool, typer.Option("--controller", help="For a backup controller: its directories and configuration as well.")
    ] = False,
    slurm_conf: Conf = None,
    shared: Shared = "",
    directory: Directory = None,
    state_dir: State = None,
    node_state_dir: NodeState = None,
    config: ConfigFile = None,
    python: Python = None,
    munge: Munge = None,
    kernel_log: Kernel = None,
    nvidia_proc: Nvidia = None,
    gate: Gate = None,
    root: Root = ROOT,
    slurm_release: Release = "",
    manifest: Manifest = FILE,
) -> None:
    """Pack the nodes' files for your own tools: an image, Ansible, a provisioning system.

    Then `slurmwrap hooks install --nodes none` with the same options edits slurm.conf.

    \b
    Examples:
      slurmwrap hooks bundle hooks.tar.gz --shared /shared/slurmwrap
      slurmwrap hooks bundle --controller backup.tar.gz   then, on the backup: tar -C / -xzf backup.tar.gz
    """
    from slurmwrap.install import install_workflow
    from slurmwrap.install.copy_to_nodes import make_bundle as packed

    given = {
        **locals(),
        "no_systemd": True,
        "unit_dir": None,
        "command": None,
        "cli_filter": None,
        "become_users": None,
        "edit": None,
        "nodes": "none",
    }
    where, made, _ = _plan_installation({**given, "no_reconfigure": True})
    shipment = (
        install_workflow.make_controller_payload(made, where)
        if controller
        else install_workflow.make_node_payload(made)
    )
    content = packed(shipment)
    try:
        to.write_bytes(content)
    except OSError as error:
        raise SlurmwrapError(f"{to}: {error.strerror}") from error
    for path in [one[0] for one in (*shipment.folders, *shipment.files)]:
        typer.echo(make_lines_harmless(f"{path}"))


@app.command()
def check(
    root: Root = ROOT,
    no_systemd: NoSystemd = False,
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="LIST", help="Nodes whose slurm.conf is checked: none, all, or a list.")
    ] = "none",
    patience: Patience = 60.0,
    manifest: Manifest = FILE,
    as_json: Json = False,
) -> None:
    """Check the installation: files, modes, slurm.conf, the configuration that slurmctld uses, units.

    With --nodes also whether these nodes read a slurm.conf that names the hooks, by a short job of root on each.
    Exit codes: 0 all is well, 1 a warning, 2 a failure. `slurmwrap doctor` shows which nodes' hooks sent something.

    \b
    Examples:
      slurmwrap hooks check
      slurmwrap hooks check --nodes all
    """
    from slurmwrap.install import check_installation, install_output
    from slurmwrap.install import check_installation as checking

    where = _read_installed(root, manifest, systemd=not no_systemd)
    assert where.manifest is not None
    held = checking.check(where.manifest, where.system, where.slurm.config)
    held += check_installation.check_nodes(where, nodes, patience)
    rank = (checking.OK, checking.WARN, checking.FAIL)
    worst = max((one.state for one in held), key=rank.index)
    content = install_output.check_json(held, worst)
    typer.echo(
        format_json_document("hooks_check", content)
        if as_json
        else make_lines_harmless(install_output.check_text(held, terminal.choose_painter()))
    )
    sys.exit(rank.index(worst))


@app.command()
def uninstall(
    root: Root = ROOT,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove the collected data: spool, database, published files.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    no_systemd: NoSystemd = False,
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="LIST", help="Nodes from which files are removed: all, none, or a list.")
    ] = "all",
    no_reconfigure: NoReconfigure = False,
    patience: Patience = 300.0,
    manifest: Manifest = FILE,
) -> None:
    """Undo the installation: slurm.conf first, then units, the files of the nodes and of this host.

    Files that were changed since the installation stay and are named.

    \b
    Examples:
      slurmwrap hooks uninstall --dry-run
      slurmwrap hooks uninstall
    """
    from slurmwrap.install import install_output, install_workflow
    from slurmwrap.install import uninstall as from_nodes
    from slurmwrap.install import uninstall as remove
    from slurmwrap.install.copy_to_nodes import group_by_reason
    from slurmwrap.model import hostlist

    where = _read_installed(root, manifest, systemd=not no_systemd, reconfigure=not no_reconfigure)
    assert where.manifest is not None
    taking = remove.plan_uninstallation(where.manifest, where.system.tree)
    typer.echo(make_lines_harmless(install_output.format_uninstall_plan(taking, purge, terminal.choose_painter())))
    if dry_run:
        return
    if where.system.alive and os.geteuid() != 0:
        raise SlurmwrapError("only root can uninstall hooks", hint="Run it with sudo.")
    written = remove.restore_conf(taking, where.manifest, where.system)
    from_nodes.refuse_hooks_in_force(where)
    sent = from_nodes.remove_from_nodes(where, nodes, patience)
    from_nodes.refuse_named(sent)
    for reason, names in group_by_reason(sent):
        where.console.say(f"the files stay on {hostlist.fold(names)}: {reason}. {from_nodes.left_behind(where)}")
    gone = {one.node for one in sent if not one.reason}
    behind = [name for name in where.manifest.nodes if name not in gone and nodes != install_workflow.NONE]
    for path in remove.remove_installation(taking, written, where.system, purge=purge, behind=behind):
        where.console.say(f"stays: {path}")
    later = f"; {hostlist.fold(behind)}: again when free, or forget them with --nodes none" if behind else ""
    where.console.say(f"uninstalled{later}")


@app.command()
def watchdog(as_json: Json = False) -> None:
    """Report when the reconciler or last night's report is overdue: for the timer, and for monitoring.

    If the reconciler is overdue, time limits and priorities that it changed for waiting jobs are put back.

    Exit codes: 0 all is well, 2 something is late. Mail goes to [report].to once, again after a day, and at the end.

    \b
    Example:
      slurmwrap hooks watchdog; echo $?
    """

    from slurmwrap.cli.hooks_watchdog import check_services

    late, text = check_services(time.time(), Console.of_terminal("slurmwrap"))
    typer.echo(format_json_document("watchdog", {"late": late}) if as_json else text)
    sys.exit(2 if late else 0)


def _plan_installation(given: dict[str, Any]) -> tuple[Any, Any, tuple[str, ...]]:
    """Return the installation's context, its plan, and the nodes that get files, for the options of a command."""
    from slurmwrap.install import install_workflow

    where = install_workflow.context(
        given["root"], given["manifest"], reconfigure=not given["no_reconfigure"], systemd=not given["no_systemd"],
        slurm_conf=given["slurm_conf"],
    )  # fmt: skip
    asked = {**given, "units": "" if given["no_systemd"] else given["unit_dir"], "slurm_conf": None}
    where, made = install_workflow.make(
        where, asked, given["shared"].rstrip("/"), given["slurm_conf"], given["slurm_release"]
    )
    return where, made, install_workflow.target_nodes(where, given["nodes"], made)


def _read_installed(root: Path, manifest: Path, *, systemd: bool, reconfigure: bool = True) -> Any:
    """Return the context of the present installation. Raise SlurmwrapError if nothing is installed."""
    from slurmwrap.fast_dataclasses import replace
    from slurmwrap.install import install_workflow
    from slurmwrap.install.install_target import find_account
    from slurmwrap.install.safe_files import FileTree

    where = install_workflow.context(root, manifest, reconfigure=reconfigure, systemd=systemd)
    if where.manifest is None:
        raise SlurmwrapError(f"nothing is installed: there is no {manifest}", hint="`slurmwrap hooks install` does.")
    tree = where.system.tree
    trusted = tree.trusted | {find_account(tree, str(where.manifest.settings["slurm_user"])).uid}
    return replace(where, system=replace(where.system, tree=FileTree(root=root, trusted=trusted)))
