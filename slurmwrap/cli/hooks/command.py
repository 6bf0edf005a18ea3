"""`slurmwrap hooks`: flags in, one flow of flow.py called, output."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.hooks.told import harmless_lines, tell_tried
from slurmwrap.cli.voice import Voice
from slurmwrap.errors import SlurmwrapError
from slurmwrap.install.manifest import FILE

app = typer.Typer(help="The Prolog, Epilog and EpilogSlurmctld that observe jobs.", no_args_is_help=True)

_ROOT = Path("/")
_Conf = Annotated[
    Path | None,
    typer.Option("--slurm-conf", metavar="FILE", help="[default: as Slurm finds it]"),
]
_Shared = Annotated[str, typer.Option(metavar="DIR", help="Shared by nodes and controller: DIR/spool, DIR/published.")]
_Directory = Annotated[
    str | None, typer.Option("--directory", metavar="DIR", help="Of the hooks; local disk, root's alone.")
]
_State = Annotated[
    str | None, typer.Option("--state-dir", metavar="DIR", help="SlurmUser's own, on the controller's disk.")
]
_NodeState = Annotated[
    str | None, typer.Option("--node-state-dir", metavar="DIR", help="root's own on each node; %n: its name.")
]
_Config = Annotated[str | None, typer.Option("--config", metavar="FILE", help="The site's configuration.")]
_Units = Annotated[str | None, typer.Option("--unit-dir", metavar="DIR", help="Of systemd's units.")]
_Command = Annotated[
    str | None, typer.Option("--command", metavar="FILE", help="The slurmwrap that the services start.")
]
_Python = Annotated[str | None, typer.Option("--python", metavar="FILE", help="3.6 or newer, on the nodes' own disks.")]
_Munge = Annotated[str | None, typer.Option("--munge", metavar="FILE", help="The munge command on the nodes.")]
_Kernel = Annotated[str | None, typer.Option("--kernel-log", help="/dev/kmsg, journal or file:PATH.")]
_Nvidia = Annotated[str | None, typer.Option("--nvidia-proc", metavar="DIR", help="Of NVIDIA's driver, in /proc.")]
_Gate = Annotated[str | None, typer.Option("--gate", help="on: the Prolog refuses nodes with a conclusive fault; off.")]
_Filter = Annotated[
    str | None,
    typer.Option("--cli-filter", help="Tell users of plain sbatch of gsub: off, files or on (docs/install.md)."),
]
_Become = Annotated[
    bool | None,
    typer.Option("--become-users/--no-become-users", help="The reconciler may read a user's files as that user."),
]
_Root = Annotated[
    Path, typer.Option("--root", metavar="DIR", help="Install into an image: files only, no Slurm is asked.")
]
_Release = Annotated[str, typer.Option("--slurm-release", metavar="YY.MM", help="Of the image's Slurm.")]
_NoSystemd = Annotated[bool, typer.Option("--no-systemd", help="No units; docs/install.md says what to run instead.")]
_Nodes = Annotated[
    str,
    typer.Option(
        "--nodes",
        metavar="LIST",
        help="Who gets the files: all, none, or a host list.  [default: who has not got them]",
    ),
]
_Manifest = Annotated[Path, typer.Option("--manifest", metavar="FILE", help="Where it is written down what was done.")]
_Json = Annotated[bool, typer.Option("--json", help="For programs.")]
_NoReconfigure = Annotated[bool, typer.Option("--no-reconfigure", help="Do not run `scontrol reconfigure`.")]
_Patience = Annotated[float, typer.Option("--patience", min=1.0, help="Seconds to wait for a job on a node.")]


@app.command()
def plan(
    slurm_conf: _Conf = None,
    shared: _Shared = "",
    directory: _Directory = None,
    state_dir: _State = None,
    node_state_dir: _NodeState = None,
    config: _Config = None,
    unit_dir: _Units = None,
    command: _Command = None,
    python: _Python = None,
    munge: _Munge = None,
    kernel_log: _Kernel = None,
    nvidia_proc: _Nvidia = None,
    gate: _Gate = None,
    cli_filter: _Filter = None,
    become_users: _Become = None,
    root: _Root = _ROOT,
    slurm_release: _Release = "",
    no_systemd: _NoSystemd = False,
    nodes: _Nodes = "",
    no_reconfigure: _NoReconfigure = False,
    manifest: _Manifest = FILE,
    as_json: _Json = False,
) -> None:
    """Show exactly what `install` would do: the diff of slurm.conf, every file and directory. Writes nothing.

    Exit code 1 where something is in the way.

    \b
    Examples:
      slurmwrap hooks plan --shared /shared/slurmwrap
      slurmwrap hooks plan --json | jq -r .diff
    """
    from slurmwrap.cli.hooks import flow
    from slurmwrap.install import show

    where, made, names = _planned(locals())
    steps = flow.steps_of(made, where, names, by_hand=nodes == flow.NONE, test=where.system.alive)
    if as_json:
        typer.echo(json.dumps(show.plan_json(made, steps), indent=2))
    else:
        typer.echo(harmless_lines(show.plan_text(made, steps, terminal.painter())))
    sys.exit(1 if made.conflicts else 0)


@app.command()
def install(
    slurm_conf: _Conf = None,
    shared: _Shared = "",
    directory: _Directory = None,
    state_dir: _State = None,
    node_state_dir: _NodeState = None,
    config: _Config = None,
    unit_dir: _Units = None,
    command: _Command = None,
    python: _Python = None,
    munge: _Munge = None,
    kernel_log: _Kernel = None,
    nvidia_proc: _Nvidia = None,
    gate: _Gate = None,
    cli_filter: _Filter = None,
    become_users: _Become = None,
    root: _Root = _ROOT,
    slurm_release: _Release = "",
    no_systemd: _NoSystemd = False,
    nodes: _Nodes = "",
    skip: Annotated[str, typer.Option(help="Nodes to leave out; Slurm drains them at their first job.")] = "",
    no_reconfigure: _NoReconfigure = False,
    patience: _Patience = 300.0,
    test: Annotated[bool, typer.Option("--test/--no-test", help="Run a test job at the end.")] = True,
    test_node: Annotated[str, typer.Option(metavar="LIST", help="Where.  [default: one node per partition]")] = "",
    test_user: Annotated[str, typer.Option(metavar="USER", help="As whom.  [default: root]")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    manifest: _Manifest = FILE,
) -> None:
    """Do what `plan` shows, then run a test job. Again after an upgrade, a new node, or an interruption.

    What is there and not ours is never overwritten. slurm.conf is edited last, when every node has the files.

    \b
    Examples:
      slurmwrap hooks install --shared /shared/slurmwrap
      slurmwrap hooks install --nodes node[17-20]   after these were set up anew
      slurmwrap hooks install --nodes none          your own tools bring the files
    """
    from slurmwrap.cli.hooks import flow
    from slurmwrap.cluster import hostlist
    from slurmwrap.install import show

    where, made, names = _planned(locals())
    steps = flow.steps_of(made, where, names, by_hand=nodes == flow.NONE, test=test and where.system.alive)
    typer.echo(harmless_lines(show.plan_text(made, steps, terminal.painter())))
    if made.conflicts:
        sys.exit(1)
    if not yes and sys.stdin.isatty() and not typer.confirm("\nGo on?"):
        sys.exit(1)
    flow.install(where, made, names, patience, hostlist.expand(skip) if skip else ())
    where.voice.say("installed")
    if not test or not where.system.alive:
        return
    if no_reconfigure:
        where.voice.say("no test job: slurmctld has not read slurm.conf. Then: slurmwrap hooks check")
        return
    tried = flow.test_jobs(where, made, hostlist.expand(test_node) if test_node else (), test_user, patience)
    tell_tried(tried, where.voice, flow.RESTART if made.restart else "")


@app.command()
def bundle(
    to: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="Unpack it on each node: tar -C / -xzf FILE")],
    slurm_conf: _Conf = None,
    shared: _Shared = "",
    directory: _Directory = None,
    state_dir: _State = None,
    node_state_dir: _NodeState = None,
    config: _Config = None,
    python: _Python = None,
    munge: _Munge = None,
    kernel_log: _Kernel = None,
    nvidia_proc: _Nvidia = None,
    gate: _Gate = None,
    root: _Root = _ROOT,
    slurm_release: _Release = "",
    manifest: _Manifest = FILE,
) -> None:
    """Pack the nodes' files for your own tools: an image, Ansible, a provisioning system.

    Then `slurmwrap hooks install --nodes none` with the same options edits slurm.conf.

    \b
    Example:
      slurmwrap hooks bundle hooks.tar.gz --shared /shared/slurmwrap
    """
    from slurmwrap.cli.hooks import flow
    from slurmwrap.install.nodes import bundle as packed

    given = {
        **locals(),
        "no_systemd": True,
        "unit_dir": None,
        "command": None,
        "cli_filter": None,
        "become_users": None,
        "nodes": "none",
    }
    _, made, _ = _planned({**given, "no_reconfigure": True})
    content = packed(flow.shipment_of(made))
    try:
        to.write_bytes(content)
    except OSError as error:
        raise SlurmwrapError(f"{to}: {error.strerror}") from error
    for item in made.node_items:
        typer.echo(f"{item.path}")


@app.command()
def check(
    root: _Root = _ROOT, no_systemd: _NoSystemd = False, manifest: _Manifest = FILE, as_json: _Json = False
) -> None:
    """Look what of the installation still holds: files, modes, slurm.conf, what slurmctld has in force, units.

    Exit codes: 0 all is well, 1 a warning, 2 a failure. `slurmwrap doctor` looks at the nodes as well.

    \b
    Example:
      slurmwrap hooks check
    """
    from slurmwrap.install import check as checking
    from slurmwrap.install import show

    where = _installed(root, manifest, systemd=not no_systemd)
    assert where.manifest is not None
    held = checking.check(where.manifest, where.system, where.slurm.config)
    rank = (checking.OK, checking.WARN, checking.FAIL)
    worst = max((one.state for one in held), key=rank.index)
    told = show.check_json(held, worst)
    typer.echo(json.dumps(told, indent=2) if as_json else harmless_lines(show.check_text(held, terminal.painter())))
    sys.exit(rank.index(worst))


@app.command()
def uninstall(
    root: _Root = _ROOT,
    purge: Annotated[bool, typer.Option("--purge", help="Also what was found: spool, database, published.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it only.")] = False,
    no_systemd: _NoSystemd = False,
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="LIST", help="Where the files go: all, none, or a list.")
    ] = "all",
    no_reconfigure: _NoReconfigure = False,
    patience: _Patience = 300.0,
    manifest: _Manifest = FILE,
) -> None:
    """Take everything back: slurm.conf first, then units, the nodes' files and ours. Changed files stay and are named.

    \b
    Examples:
      slurmwrap hooks uninstall --dry-run
      slurmwrap hooks uninstall
    """
    from slurmwrap.cli.hooks import flow
    from slurmwrap.cluster import hostlist
    from slurmwrap.install import remove, show
    from slurmwrap.install.nodes import summed

    where = _installed(root, manifest, systemd=not no_systemd, reconfigure=not no_reconfigure)
    assert where.manifest is not None
    taking = remove.make_taking(where.manifest, where.system.tree)
    typer.echo(harmless_lines(show.taking_text(taking, purge, terminal.painter())))
    if dry_run:
        return
    if where.system.alive and os.geteuid() != 0:
        raise SlurmwrapError("only root can uninstall hooks", hint="Run it with sudo.")
    written = remove.restore_conf(taking, where.manifest, where.system)
    flow.refuse_in_force(where)
    sent = flow.take_from_nodes(where, nodes, patience)
    for reason, names in summed(sent):
        where.voice.say(f"the files stay on {hostlist.fold(names)}: {reason}. {flow.left_behind(where)}")
    gone = {one.node for one in sent if not one.reason}
    behind = [name for name in where.manifest.nodes if name not in gone and nodes != flow.NONE]
    for path in remove.take_away(taking, written, where.system, purge=purge, behind=behind):
        where.voice.say(f"stays: {path}")
    later = f"; {hostlist.fold(behind)}: again when free, or forget them with --nodes none" if behind else ""
    where.voice.say(f"uninstalled{later}")


@app.command()
def watchdog(as_json: _Json = False) -> None:
    """Say when the reconciler or last night's report is missing: for the timer, and for monitors.

    Exit codes: 0 all is well, 2 something is late. Mail goes to [report].to once, after a day again, and when it ended.

    \b
    Example:
      slurmwrap hooks watchdog; echo $?
    """
    from slurmwrap.cli.hooks.watchdog import watch_over

    late, text = watch_over(time.time(), Voice.of_terminal("slurmwrap"))
    typer.echo(json.dumps({"late": late}, indent=2) if as_json else text)
    sys.exit(2 if late else 0)


def _planned(given: dict[str, Any]) -> tuple[Any, Any, tuple[str, ...]]:
    """(ground, plan, the nodes that get files) for the flags of a command."""
    from slurmwrap.cli.hooks import flow

    where = flow.ground(
        given["root"], given["manifest"], reconfigure=not given["no_reconfigure"], systemd=not given["no_systemd"],
        slurm_conf=given["slurm_conf"],
    )  # fmt: skip
    asked = {**given, "units": "" if given["no_systemd"] else given["unit_dir"], "slurm_conf": None}
    where, made = flow.make(where, asked, given["shared"].rstrip("/"), given["slurm_conf"], given["slurm_release"])
    return where, made, flow.target_nodes(where, given["nodes"], made)


def _installed(root: Path, manifest: Path, *, systemd: bool, reconfigure: bool = True) -> Any:
    """The ground of what is installed. SlurmwrapError where nothing is."""
    from slurmwrap.cli.hooks import flow
    from slurmwrap.install.safely import Tree
    from slurmwrap.install.wanted import account
    from slurmwrap.records import replace

    where = flow.ground(root, manifest, reconfigure=reconfigure, systemd=systemd)
    if where.manifest is None:
        raise SlurmwrapError(f"nothing is installed: there is no {manifest}", hint="`slurmwrap hooks install` does.")
    tree = where.system.tree
    trusted = tree.trusted | {account(tree, str(where.manifest.settings["slurm_user"])).uid}
    return replace(where, system=replace(where.system, tree=Tree(root=root, trusted=trusted)))
