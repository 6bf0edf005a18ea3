"""`slurmwrap profile`: what is known of jobs' needs. Flags in, one table or page out."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.profile import profile_output as profile_page
from slurmwrap.cli.profile.profile_files import export_profiles as exported
from slurmwrap.cli.profile.profile_files import read_profiles
from slurmwrap.cli.profile.profile_store import ProfileStore, catch_up, key_of_script, open_shelf
from slurmwrap.console import Console
from slurmwrap.errors import UsageError
from slurmwrap.json_output import format_json_document
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.profiling.merge_profiles import adapt_profile
from slurmwrap.store.database import ProfileUse
from slurmwrap.store.serialize import to_json_dict

app = typer.Typer(
    no_args_is_help=True,
    help="""What your jobs need, as their pre-runs and runs showed it: CPUs, memory, GPU, speed.

    \b
    Examples:
      slurmwrap profile list
      slurmwrap profile show train.sbatch
      slurmwrap profile measure --minutes 5 train.sbatch
      slurmwrap profile export > profiles.json
    """,
)

Site = Annotated[bool, typer.Option("--site", help="The site's profiles, as root or SlurmUser.")]
# Profiles that one line may fold.
_PER_LINE = 20


@app.command("list")
def list_profiles(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only keys and scripts that contain it.")] = "",
    source: Annotated[str, typer.Option(help="Only prerun, epilog, import or user.")] = "",
    since: Annotated[str, typer.Option(help="Only what was measured since: 24h, 7d, or a date.")] = "",
    min_confidence: Annotated[float, typer.Option(min=0.0, max=1.0, help="Only what is that certain now.")] = 0.0,
    user: list_options.User = "",
    site: Site = False,
    limit: list_options.Limit = list_options.LIMIT,
    everything: list_options.Everything = False,
    as_json: list_options.AsJson = False,
) -> None:
    """List profiles, the newest first: the script that used each last, and the confidence as of now.

    Of what you measured and what the site did, the better one, as gsub takes it. "runs" counts complete runs +
    pre-runs. Those that differ in nothing but the digest of their key share a line. --user goes with --site.
    """
    now = time.time()
    shelf = _open_profile_store(site)
    start = terminal.since(since, now) if since else 0.0
    found = [adapt_profile(one, now) for one in shelf.profiles()]
    paths = {key: use.script for key, use in shelf.uses().items()} if name else {}
    found = [one for one in found if name in one.key or name in paths.get(one.key, "")]
    found = [one for one in found if source in ("", one.source) and one.measured_at >= start]
    found = sorted((p for p in found if p.confidence >= min_confidence), key=lambda p: (-p.measured_at, p.key))
    if user:
        names = list_options.split_list(user)
        found = [one for one in found if profile_page.name_of(one, site=site).partition(":")[0] in names]
    shown, more = list_options.cut_rows(found, limit * (1 if as_json else _PER_LINE), everything)
    uses = shelf.uses()
    text, left = profile_page.format_profiles(
        *(shown, now, None if everything else limit), uses=uses, site=site, columns=terminal.columns()
    )
    more = more if as_json else more + left
    rows = [to_json_dict(one) | _plain_use(uses.get(one.key)) for one in shown]
    list_options.say_list("profiles", rows, text, as_json=as_json, more=more)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="KEY|SCRIPT|last", help="A key or its beginning, a batch script.")],
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw into FILE.svg or FILE.png as well.")] = None,
    storage: Annotated[
        float | None, typer.Option(min=1, metavar="MIB/S", help="What storage gives one GPU's share of the job.")
    ] = None,
    site: Site = False,
    as_json: list_options.AsJson = False,
) -> None:
    """Show one profile: what the job needs, on what it rests, its CPU curve and its memory model."""
    now = time.time()
    shelf = _open_profile_store(site)
    profile = shelf.one(key_of_script(Path(name)) if _is_script(name, shelf) else name)
    if plot is not None:
        from slurmwrap.cli.profile.profile_output import draw_profile

        draw_profile(profile, plot)
        typer.echo(f"drawn: {plot}", err=True)
    if as_json:
        plain = to_json_dict(adapt_profile(profile, now)) | _plain_use(shelf.uses().get(profile.key))
        typer.echo(format_json_document("profile", plain))
        return
    typer.echo(_format_page(profile, now, storage, shelf.uses().get(profile.key)))


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}
)
def measure(
    words: Annotated[list[str], typer.Argument(metavar="[SBATCH OPTIONS] SCRIPT [ARGUMENTS]")],
    minutes: Annotated[float, typer.Option(min=0.5, max=1440, help="For the CPU curve, after the first steps.")] = 5.0,
) -> None:
    """Run the job on one GPU, only to learn what it needs; nothing else is submitted.

    This is gsub --prerun=only with the CPU curve behind it. Options of this command stand before sbatch's own.
    """
    from slurmwrap.cli.profile.profile_store import measure_profile

    console = Console.of_terminal("slurmwrap")
    profile, code = measure_profile(words, minutes * 60, console)
    if profile is None:
        console.say("nothing was learnt of its needs")
    else:
        typer.echo(_format_page(profile, time.time()))
    raise typer.Exit(code)


@app.command("import")
def import_profiles(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of 'profile export', or Synergy's CSV. -: stdin.")],
    replacing: Annotated[bool, typer.Option("--replace", help="Also keys that are known already.")] = False,
    user: Annotated[str, typer.Option(help="With --site: whose profiles these are.")] = "",
    site: Site = False,
) -> None:
    """Take in profiles from a file; gsub --resource-profile KEY then finds them.

    Either all of the file is taken in or nothing.
    """
    if user and not site:
        raise UsageError("--user goes with --site: your own profiles are yours")
    shelf = _open_profile_store(site)
    found = shelf.owned(read_profiles(file, time.time()), user)
    known = {one.key for one in shelf.stored()}
    wanted = [one for one in found if replacing or one.key not in known]
    shelf.keep(wanted)
    typer.echo(f"{len(wanted)} of {len(found)} profiles taken in")
    if len(wanted) < len(found):
        typer.echo("the others are known already and stay as they are; --replace takes the file's", err=True)


@app.command("export")
def export_profiles(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Default: all.")] = None,
    site: Site = False,
) -> None:
    """Write profiles as JSON to stdout; `profile import` gives the very same back."""
    shelf = _open_profile_store(site)
    found = [shelf.one(key) for key in keys] if keys else list(shelf.profiles())
    typer.echo(exported(found))


# Its name until there was one word for all.
@app.command("forget", hidden=True)
@app.command(short_help="Remove profiles, and the measurements they rest on.")
def clear(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    site: Site = False,
) -> None:
    """Remove profiles and the measurements they rest on. Nothing is asked; what was removed is said."""
    if bool(keys) == everything:
        raise UsageError("name the keys to clear, or --all", hint="slurmwrap profile list")
    shelf = _open_profile_store(site)
    gone = list(shelf.stored()) if everything else [shelf.exactly(key) for key in keys or ()]
    for one in gone:
        shelf.forget(one.key)
        typer.echo(f"forgotten: {profile_page.name_of(one, site=site)}")
    if not gone:
        typer.echo("there is nothing to forget")


def _plain_use(use: ProfileUse | None) -> dict[str, object]:
    if use is None:
        return {"script": None, "last_used": None, "submissions": 0}
    return {"script": use.script, "last_used": use.last_at, "submissions": use.times}


def _format_page(
    profile: ResourceProfile, now: float, storage: float | None = None, use: ProfileUse | None = None
) -> str:
    return profile_page.format_profile(
        profile,
        now,
        use=use,
        columns=terminal.columns(least=40, most=120),
        unicode=_can_print_blocks(),
        paint=terminal.painter(),
        storage_mib_per_s=storage,
    )


def _open_profile_store(site: bool) -> ProfileStore:
    shelf = open_shelf(site, os.environ)
    if not site:
        catch_up(os.environ, Console.of_terminal("slurmwrap"))
    return shelf


def _is_script(name: str, shelf: ProfileStore) -> bool:
    return name not in {one.key for one in shelf.profiles()} and Path(name).is_file()


def _can_print_blocks() -> bool:
    """Whether stdout can take block characters."""
    try:
        "█◀±…".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
