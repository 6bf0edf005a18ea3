"""The commands `slurmwrap profile ...`: list, show, measure, import, export and remove resource profiles."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.profile import profile_output as profile_page
from slurmwrap.cli.profile.profile_files import export_profiles as exported
from slurmwrap.cli.profile.profile_files import read_profiles
from slurmwrap.cli.profile.profile_store import (
    ProfileStore,
    derive_script_key,
    open_profile_store,
    read_new_measurements,
)
from slurmwrap.console import Console
from slurmwrap.errors import UsageError
from slurmwrap.json_output import format_json_document
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.profiling.gpu_scaling import ScalingPoint, list_scaling
from slurmwrap.profiling.merge_profiles import adapt_profile
from slurmwrap.store.database import ProfileUse
from slurmwrap.store.serialize import to_json_dict

app = typer.Typer(
    no_args_is_help=True,
    help="""What your jobs need, as measured in their pre-runs and runs: CPUs, memory, GPU, speed.

    \b
    Examples:
      slurmwrap profile list
      slurmwrap profile show train.sbatch
      slurmwrap profile advise train.sbatch
      slurmwrap profile measure --minutes 5 train.sbatch
      slurmwrap profile export > profiles.json
    """,
)

Site = Annotated[bool, typer.Option("--site", help="The site's profiles, as root or SlurmUser.")]
# With a limit on lines, this many profiles per line are read, since lines are folded.
_MOST_PER_LINE = 20


@app.command("list")
def list_profiles(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only keys and scripts that contain NAME.")] = "",
    source: Annotated[str, typer.Option(help="Only prerun, epilog, import or user.")] = "",
    since: Annotated[str, typer.Option(help="Only profiles measured since: 24h, 7d, or a date.")] = "",
    min_confidence: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Only profiles with at least this confidence now.")
    ] = 0.0,
    user: list_options.User = "",
    site: Site = False,
    limit: list_options.Limit = list_options.LIMIT,
    everything: list_options.Everything = False,
    as_json: list_options.AsJson = False,
) -> None:
    """List profiles, the newest first: the script that used each last, and the confidence as of now.

    If both you and the site have a profile for a key, the better one is listed, as gsub uses it. "runs" counts
    complete runs + pre-runs. Profiles that differ only in the digest of their key share a line. --user needs --site.
    """
    now = time.time()
    store = _open_profile_store(site)
    start = terminal.since(since, now) if since else 0.0
    found = [adapt_profile(one, now) for one in store.profiles()]
    paths = {key: use.script for key, use in store.uses().items()} if name else {}
    found = [one for one in found if name in one.key or name in paths.get(one.key, "")]
    found = [one for one in found if source in ("", one.source) and one.measured_at >= start]
    found = sorted((p for p in found if p.confidence >= min_confidence), key=lambda p: (-p.measured_at, p.key))
    if user:
        names = list_options.split_list(user)
        found = [one for one in found if profile_page.format_profile_name(one, site=site).partition(":")[0] in names]
    shown, more = list_options.cut_rows(found, limit * (1 if as_json else _MOST_PER_LINE), everything)
    uses = store.uses()
    text, left = profile_page.format_profiles(
        *(shown, now, None if everything else limit), uses=uses, site=site, columns=terminal.columns()
    )
    more = more if as_json else more + left
    rows = [to_json_dict(one) | _use_to_json_dict(uses.get(one.key)) for one in shown]
    list_options.print_list("profiles", rows, text, as_json=as_json, more=more)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="KEY|SCRIPT|last", help="A key or its beginning, or a batch script.")],
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw into FILE.svg or FILE.png as well.")] = None,
    storage: Annotated[
        float | None, typer.Option(min=1, metavar="MIB/S", help="Storage bandwidth for one GPU's share of the job.")
    ] = None,
    site: Site = False,
    as_json: list_options.AsJson = False,
) -> None:
    """Show one profile: what the job needs, the measurements behind it, its CPU curve and its memory model."""
    now = time.time()
    store = _open_profile_store(site)
    profile = store.find(derive_script_key(Path(name)) if _is_script(name, store) else name)
    if plot is not None:
        from slurmwrap.cli.profile.profile_output import draw_profile

        draw_profile(profile, plot)
        typer.echo(f"drawn: {plot}", err=True)
    if as_json:
        plain = to_json_dict(adapt_profile(profile, now)) | _use_to_json_dict(store.uses().get(profile.key))
        typer.echo(format_json_document("profile", plain))
        return
    scaling = list_scaling(store.list_speeds(profile.key))
    typer.echo(_format_page(profile, now, storage, store.uses().get(profile.key), scaling))


@app.command(short_help="What a job loses to communication between GPUs, and what to do about it.")
def advise(
    name: Annotated[str, typer.Argument(metavar="KEY|SCRIPT|last", help="A key or its beginning, or a batch script.")],
    gpus_per_node: Annotated[
        int, typer.Option(min=0, max=1024, help="GPUs on each node.  [default: of the job, at least 8 of one]")
    ] = 0,
    network: Annotated[
        float, typer.Option(min=0, max=1e6, metavar="GBIT/S", help="The network of a node, instead of the site's.")
    ] = 0.0,
    gpu_link: Annotated[
        float, typer.Option(min=0, max=1e6, metavar="GBIT/S", help="The link between GPUs, instead of the site's.")
    ] = 0.0,
    site: Site = False,
    as_json: list_options.AsJson = False,
) -> None:
    """Predict what the job loses to the all-reduce on 1, 2 and 4 nodes, and advise what to shard, cut or overlap.

    A pre-run measures size and forward time of each layer. The speed of the network comes from earlier runs of your
    jobs on fewer and more nodes (gsub --count-steps), else from the configuration, else it is assumed.
    """
    from slurmwrap.cli.profile.communication_advice import format_advice, make_advice
    from slurmwrap.config.load_config import load
    from slurmwrap.profiling.communication import choose_links

    store = _open_profile_store(site)
    profile = store.find(derive_script_key(Path(name)) if _is_script(name, store) else name)
    if not profile.model_mib:
        raise UsageError(
            f"the size of the model of '{profile.key}' is not known: no pre-run of it has made a step",
            hint="gsub --prerun=only SCRIPT",
            exit_code=1,
        )
    settings = load(os.environ).placement
    links = choose_links(
        network or settings.network_gbit_s,
        gpu_link or settings.gpu_link_gbit_s,
        profile.gpu_type,
        () if network else store.profiles(),
        named=(
            "--network" if network else "placement.network_gbit_s",
            "--gpu-link" if gpu_link else "placement.gpu_link_gbit_s",
        ),
    )
    # A job of one GPU is asked about as if it filled a usual node.
    gpus = gpus_per_node or (profile.gpus_per_node if profile.gpus_per_node > 1 else 8)
    advice = make_advice(profile, links, gpus, list_scaling(store.list_speeds(profile.key)))
    if as_json:
        typer.echo(format_json_document("profile_advice", to_json_dict(advice)))
        return
    typer.echo(format_advice(advice, columns=terminal.columns(least=40, most=120), paint=terminal.choose_painter()))


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}
)
def measure(
    words: Annotated[list[str], typer.Argument(metavar="[SBATCH OPTIONS] SCRIPT [ARGUMENTS]")],
    minutes: Annotated[
        float, typer.Option(min=0.5, max=1440, help="Time for the CPU curve, after the first steps.")
    ] = 5.0,
) -> None:
    """Run the job on one GPU, only to measure what it needs; nothing else is submitted.

    This is gsub --prerun=only, followed by the CPU curve. Options of this command must precede those of sbatch.
    """
    from slurmwrap.cli.profile.profile_store import measure_profile

    console = Console.of_terminal("slurmwrap")
    profile, code = measure_profile(words, minutes * 60, console)
    if profile is None:
        console.say("the needs of the job were not measured")
    else:
        typer.echo(_format_page(profile, time.time()))
    raise typer.Exit(code)


@app.command("import")
def import_profiles(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="From 'profile export', or Synergy's CSV. -: stdin.")],
    replacing: Annotated[bool, typer.Option("--replace", help="Also replace known keys.")] = False,
    user: Annotated[str, typer.Option(help="With --site: the owner of these profiles.")] = "",
    site: Site = False,
) -> None:
    """Import profiles from a file; gsub --resource-profile KEY then finds them.

    If the file contains an error, nothing is imported.
    """
    if user and not site:
        raise UsageError("--user needs --site: profiles in your own database are always yours")
    store = _open_profile_store(site)
    found = store.assign_owner(read_profiles(file, time.time()), user)
    known = {one.key for one in store.stored()}
    wanted = [one for one in found if replacing or one.key not in known]
    store.keep(wanted)
    typer.echo(f"{len(wanted)} of {len(found)} profiles imported")
    if len(wanted) < len(found):
        typer.echo("the other keys are known already and were not changed; --replace replaces them", err=True)


@app.command("export")
def export_profiles(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Default: all.")] = None,
    site: Site = False,
) -> None:
    """Write profiles as JSON to stdout; `profile import` restores them unchanged."""
    store = _open_profile_store(site)
    found = [store.find(key) for key in keys] if keys else list(store.profiles())
    typer.echo(exported(found))


# "forget" is the old name of the command.
@app.command("forget", hidden=True)
@app.command(short_help="Remove profiles and their measurements.")
def clear(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all profiles.")] = False,
    site: Site = False,
) -> None:
    """Remove profiles and their measurements, without confirmation. The removed keys are printed."""
    if bool(keys) == everything:
        raise UsageError("name the keys to clear, or --all", hint="slurmwrap profile list")
    store = _open_profile_store(site)
    removed = list(store.stored()) if everything else [store.find_exact(key) for key in keys or ()]
    for one in removed:
        store.forget(one.key)
        typer.echo(f"removed: {profile_page.format_profile_name(one, site=site)}")
    if not removed:
        typer.echo("there is no profile to remove")


def _use_to_json_dict(use: ProfileUse | None) -> dict[str, object]:
    if use is None:
        return {"script": None, "last_used": None, "submissions": 0}
    return {"script": use.script, "last_used": use.last_at, "submissions": use.times}


def _format_page(
    profile: ResourceProfile,
    now: float,
    storage: float | None = None,
    use: ProfileUse | None = None,
    scaling: Sequence[ScalingPoint] = (),
) -> str:
    return profile_page.format_profile(
        profile,
        now,
        use=use,
        columns=terminal.columns(least=40, most=120),
        unicode=terminal.can_print_blocks(),
        paint=terminal.choose_painter(),
        storage_mib_per_s=storage,
        scaling=scaling,
    )


def _open_profile_store(site: bool) -> ProfileStore:
    store = open_profile_store(site, os.environ)
    if not site:
        read_new_measurements(os.environ, Console.of_terminal("slurmwrap"))
    return store


def _is_script(name: str, store: ProfileStore) -> bool:
    return name not in {one.key for one in store.profiles()} and Path(name).is_file()
