"""`slurmwrap hooks`: writes the hooks' files and says what an administrator does with them; slurm.conf is his."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap.host.hookfiles import HookSettings, install
from slurmwrap.host.hookfiles import plan as describe
from slurmwrap.shipped import shipped

app = typer.Typer(help="The Prolog, Epilog and EpilogSlurmctld that observe jobs.", no_args_is_help=True)

_To = Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the files go; local disk, only root can write.")]
_Python = Annotated[str, typer.Option(help="Python 3.6 or newer, on the local disk of every node.")]
_Spool = Annotated[Path, typer.Option(help="Directory shared by nodes and controller (mode 1733).")]
_Controller = Annotated[Path, typer.Option(help="Private directory of SlurmUser on the controller.")]
_State = Annotated[Path, typer.Option(help="Private directory of root on each node; %n is the node's name.")]
_Cluster = Annotated[str, typer.Option(help="ClusterName of slurm.conf.")]
_Munge = Annotated[str, typer.Option(help="The munge command.")]
_Socket = Annotated[str, typer.Option(help="munged's socket, if it is not MUNGE's default.")]
_Kernel = Annotated[str, typer.Option(help="/dev/kmsg, journal or file:PATH.")]
_Nvidia = Annotated[str, typer.Option(help="The NVIDIA driver's directory in /proc.")]
_Gate = Annotated[str, typer.Option(help="on: the Prolog refuses nodes with a conclusive fault (docs/hooks.md); off.")]
_Published = Annotated[str, typer.Option(help="site.published; the gate needs it.")]

DIRECTORY = Path("/usr/local/lib/slurmwrap/hooks")
SPOOL = Path("/var/spool/slurmwrap")
CONTROLLER = Path("/var/lib/slurmwrap/controller")
STATE = Path("/run/slurmwrap")
UNITS = Path("/etc/systemd/system")


@app.command()
def plan(
    cluster: _Cluster,
    to: _To = DIRECTORY,
    python: _Python = "/usr/bin/python3",
    spool: _Spool = SPOOL,
    controller_dir: _Controller = CONTROLLER,
    node_state_dir: _State = STATE,
    munge: _Munge = "",
    munge_socket: _Socket = "",
    kernel_log: _Kernel = "/dev/kmsg",
    nvidia_proc: _Nvidia = "/proc/driver/nvidia",
    gate: _Gate = "off",
    published: _Published = "",
) -> None:
    """Prints directories and slurm.conf lines; writes nothing."""
    typer.echo(describe(_settings(**locals())), nl=False)


@app.command()
def build(
    cluster: _Cluster,
    to: _To = DIRECTORY,
    python: _Python = "/usr/bin/python3",
    spool: _Spool = SPOOL,
    controller_dir: _Controller = CONTROLLER,
    node_state_dir: _State = STATE,
    munge: _Munge = "",
    munge_socket: _Socket = "",
    kernel_log: _Kernel = "/dev/kmsg",
    nvidia_proc: _Nvidia = "/proc/driver/nvidia",
    gate: _Gate = "off",
    published: _Published = "",
) -> None:
    """Writes shims, zipapp and settings to --to, and prints the same as `plan`."""
    settings = _settings(**locals())
    files = install(settings)
    typer.echo(f"# Written: {files.prolog}, {files.epilog}, {files.epilog_slurmctld}, {files.zipapp}")
    typer.echo(describe(settings), nl=False)


@app.command()
def units(
    slurm_user: Annotated[str, typer.Option(help="SlurmUser of slurm.conf.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the unit files go.")] = UNITS,
    command: Annotated[str, typer.Option(help="The slurmwrap command, by its full path.")] = "",
    config: Annotated[str, typer.Option(help="The site's configuration file.")] = "/etc/slurmwrap/config.toml",
) -> None:
    """Writes systemd units for the controller: the reconciler, and the night report with its timer."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = command or shutil.which("slurmwrap") or str(Path(sys.executable).with_name("slurmwrap"))
    loader = FileSystemLoader(shipped("templates") / "hooks")
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - no HTML
    for name in sorted(environment.list_templates(extensions=["j2"])):
        path = to / name.removesuffix(".j2")
        text = environment.get_template(name).render(slurm_user=slurm_user, command=found, config=config)
        path.write_text(text, encoding="utf-8")
        typer.echo(f"# Written: {path}")
    typer.echo("systemctl daemon-reload\nsystemctl enable --now slurmwrap-reconcile.service slurmwrap-report.timer")


def _settings(*, to: Path, munge: str, **given: str | Path) -> HookSettings:
    found = munge or shutil.which("munge") or "/usr/bin/munge"
    return HookSettings(directory=to, munge=found, **given)  # type: ignore[arg-type]
