"""The options that several commands of `slurmwrap hooks` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    str | None, typer.Option("--directory", metavar="DIR", help="Of the hooks; local disk, root's alone.")
]
State = Annotated[
    str | None, typer.Option("--state-dir", metavar="DIR", help="SlurmUser's own, on the controller's disk.")
]
NodeState = Annotated[
    str | None, typer.Option("--node-state-dir", metavar="DIR", help="root's own on each node; %n: its name.")
]
ConfigFile = Annotated[str | None, typer.Option("--config", metavar="FILE", help="The site's configuration.")]
Units = Annotated[str | None, typer.Option("--unit-dir", metavar="DIR", help="Of systemd's units.")]
Command = Annotated[
    str | None, typer.Option("--command", metavar="FILE", help="The slurmwrap that the services start.")
]
Python = Annotated[str | None, typer.Option("--python", metavar="FILE", help="3.6 or newer, on the nodes' own disks.")]
Munge = Annotated[str | None, typer.Option("--munge", metavar="FILE", help="The munge command on the nodes.")]
Kernel = Annotated[str | None, typer.Option("--kernel-log", help="/dev/kmsg, journal or file:PATH.")]
Nvidia = Annotated[str | None, typer.Option("--nvidia-proc", metavar="DIR", help="Of NVIDIA's driver, in /proc.")]
Gate = Annotated[str | None, typer.Option("--gate", help="on: the Prolog refuses nodes with a conclusive fault; off.")]
Filter = Annotated[
    str | None,
    typer.Option("--cli-filter", help="Tell users of plain sbatch of gsub: off, files or on (docs/install.md)."),
]
Become = Annotated[
    bool | None,
    typer.Option("--become-users/--no-become-users", help="The reconciler may read a user's files as that user."),
]
Root = Annotated[
    Path, typer.Option("--root", metavar="DIR", help="Install into an image: files only, no Slurm is asked.")
]
Release = Annotated[str, typer.Option("--slurm-release", metavar="YY.MM", help="Of the image's Slurm.")]
NoSystemd = Annotated[bool, typer.Option("--no-systemd", help="No units; docs/install.md says what to run instead.")]
Nodes = Annotated[
    str,
    typer.Option(
        "--nodes",
        metavar="LIST",
        help="Who gets the files: all, none, or a host list.  [default: who has not got them]",
    ),
]
Manifest = Annotated[Path, typer.Option("--manifest", metavar="FILE", help="Where it is written down what was done.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]
NoReconfigure = Annotated[bool, typer.Option("--no-reconfigure", help="Do not run `scontrol reconfigure`.")]
Patience = Annotated[float, typer.Option("--patience", min=1.0, help="Seconds to wait for a job on a node.")]
