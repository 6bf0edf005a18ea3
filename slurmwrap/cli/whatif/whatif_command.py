"""`slurmwrap whatif`: a site's own month under plain Slurm and under slurmwrap. Flags in, a page out."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurmwrap.console import Console, columns
from slurmwrap.errors import TraceError, UsageError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.json_output import format_json_document
from slurmwrap.sim.whatif.whatif_replay import (
    Progress,
    Replay,
    Submissions,
    play_failures,
    play_ours,
    play_plain,
    study_from,
)
from slurmwrap.sim.whatif.whatif_study import Study

if TYPE_CHECKING:
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.sim.trace.trace_load import Load
    from slurmwrap.sim.whatif.cluster_shape import ClusterShape
    from slurmwrap.sim.whatif.whatif_replay import Progress
    from slurmwrap.sim.whatif.whatif_study import Study


PAGE = Path("whatif.html")
# Before the first line of progress.
_QUIET_S = 1.0
_EVERY_S = 0.2
# Before that nothing is known of the pace.
_PACE_S = 3.0
# Jobs: beyond, it takes minutes.
_MANY = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """Of the cluster, said by hand; all or nothing."""

    servers: int | None
    gpus: int | None
    cpus: int | None
    mem_gb: float | None


def whatif(
    sacct: Annotated[
        Path, typer.Option(metavar="FILE", help="What sacct printed, plain or gzipped; - for standard input.")
    ],
    profiles: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Speeds by job name, to tune CPUs and memory: of slurmwrap profile export, or a CSV."
        ),
    ] = None,
    nodes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The cluster: what scontrol show node -d -o printed.")
    ] = None,
    servers: Annotated[int | None, typer.Option(help="Instead of --nodes: so many equal servers.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of each.")] = None,
    cpus: Annotated[int | None, typer.Option(help="CPUs of each.")] = None,
    mem_gb: Annotated[float | None, typer.Option(help="Memory of each.")] = None,
    since: Annotated[
        str, typer.Option(metavar="DATE", help="Where the dump begins, as sacct was told with -S.  [default: guess]")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page.  [default: whatif.html]")
    ] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Users as u1, u2, … on the page.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Every number, on stdout; a page only with -o.")] = False,
) -> None:
    """What would slurmwrap have done for your cluster last month?

    Replays what sacct remembers twice in a model of Slurm, as it is and with
    slurmwrap, next to what really happened: queueing delay, JCT, locality,
    GPU-hours lost. Nothing is installed or changed; no controller is asked.

    \b
    On the login node:
      SLURM_TIME_FORMAT=%s sacct -a -D -X -P -S now-30days -o JobID,User,\\
    Partition,State,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,\\
    ReqTRES,AllocTRES,NNodes,NodeList,ExitCode,JobName > month.psv
      scontrol show node -d -o > nodes.txt
      slurmwrap whatif --sacct month.psv --nodes nodes.txt -o whatif.html
    \b
    To show around, without names:
      slurmwrap whatif --sacct month.psv --anonymous
    \b
    For programs:
      slurmwrap whatif --sacct month.psv --json | jq .waste.lost
    """
    from slurmwrap.cli.whatif import whatif_output
    from slurmwrap.store.serialize import to_json_dict

    console = Console.of_terminal("slurmwrap whatif")
    page = output or (None if as_json else PAGE)
    if page is not None:
        _check_folder(page)
    study = _studied(
        _Given(sacct=sacct, profiles=profiles, nodes=nodes, since=since, anonymous=anonymous),
        _Size(servers=servers, gpus=gpus, cpus=cpus, mem_gb=mem_gb),
        console,
    )
    if page is not None:
        from slurmwrap.cli.whatif import whatif_page

        _write(page, whatif_page.render(study, source=sacct.name, made_by=_version()))
    if as_json:
        typer.echo(format_json_document("whatif", to_json_dict(study)))
    else:
        from slurmwrap.cli.terminal import columns, painter

        paint = painter()
        typer.echo(whatif_output.told(study, page or PAGE, width=columns(most=100), paint=paint), nl=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    sacct: Path
    profiles: Path | None
    nodes: Path | None
    since: str
    anonymous: bool


def _studied(given: _Given, size: _Size, console: Console) -> Study:
    _need_numpy()
    from slurmwrap.sim.trace.read_trace import open_load
    from slurmwrap.sim.whatif.whatif_replay import StudyOptions, submissions_of

    known = {} if given.profiles is None else _profiles(given.profiles)
    by_hand = _of_size(size, given.nodes)
    load = open_load(given.sacct)
    if not load.actual:
        raise TraceError(f"{given.sacct}: no dump of sacct, or no job with GPUs ever started in it", hint=_hint())
    site = by_hand or _site(load, given)
    asked = StudyOptions(since_s=_since(given.since, load), anonymous=given.anonymous)
    try:
        said = submissions_of(load, site, known, asked)
        if len(said.jobs) >= _MANY:
            console.say(
                f"{len(said.jobs):,} jobs on {len(site.servers):,} nodes: minutes; a dump of fewer days takes less"
            )
        return studied(said, _progress(console))
    except ValueError as error:
        raise TraceError(f"{given.sacct}: {error}", hint="dump a longer time, or give --since") from error
    finally:
        console.progress_done()


def _hint() -> str:
    from slurmwrap.sim.trace.sacct_dump import COMMAND

    return f"wanted is what this prints: {COMMAND}"


def _profiles(path: Path) -> Mapping[str, ResourceProfile]:
    from slurmwrap.cli.profile.profile_files import read_profiles

    return {profile.key: profile for profile in read_profiles(path, time.time())}


def _of_size(size: _Size, nodes: Path | None) -> ClusterShape | None:
    """UsageError where it is said in part, or twice."""
    from slurmwrap.sim.sim_job import servers_of
    from slurmwrap.sim.whatif.cluster_shape import ClusterShape

    said = (size.servers, size.gpus, size.cpus, size.mem_gb)
    if all(one is None for one in said):
        return None
    if nodes is not None or size.servers is None or size.gpus is None or size.cpus is None or size.mem_gb is None:
        hint = "give --nodes, or all of --servers, --gpus, --cpus and --mem-gb, or neither"
        raise UsageError("the cluster is said in part or twice", hint=hint, exit_code=1)
    try:
        servers = servers_of(size.servers, gpus=size.gpus, cpus=size.cpus, mem_gb=size.mem_gb)
    except ValueError as error:
        raise UsageError(str(error), exit_code=1) from error
    return ClusterShape(servers=servers, source="options")


def _site(load: Load, given: _Given) -> ClusterShape:
    from slurmwrap.sim.whatif.cluster_shape import site_of_dump, site_of_nodes
    from slurmwrap.slurm.scontrol_parser import parse_nodes

    try:
        if given.nodes is None:
            return site_of_dump(load)
        site = site_of_nodes(parse_nodes(given.nodes.read_text(encoding="utf-8", errors="replace")))
    except ValueError as error:
        raise TraceError(
            f"{given.sacct}: {error}", hint="give --nodes, or --servers, --gpus, --cpus and --mem-gb"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read {given.nodes}: {error.strerror}", exit_code=1) from error
    if not site.servers:
        raise TraceError(f"{given.nodes}: no node with GPUs in it", hint="scontrol show node -d -o > nodes.txt")
    return site


def _since(text: str, load: Load) -> float | None:
    """On the dump's clock, whose local times count as UTC."""
    from datetime import UTC

    from slurmwrap.cli import terminal

    if not text:
        return None
    try:
        return terminal.since(text, time.time(), UTC) - (load.epoch or 0.0)
    except UsageError as error:
        raise UsageError(str(error), hint=error.hint, exit_code=1) from error


def _progress(console: Console) -> Progress:
    """Redraws one line on a terminal, once the call has taken a second, with what is left of the part under way."""
    last = time.monotonic() + _QUIET_S
    begun: dict[str, float] = {}

    def told(words: str, done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        since = begun.setdefault(words, now)
        if now - last >= _EVERY_S:
            last = now
            console.redraw(f"{words}: {done:,} of {of:,}{left(now - since, done, of)}"[: columns()])

    return told


def left(spent_s: float, done: int, of: int) -> str:
    """How long the rest takes at the pace so far; "" while that cannot be said."""
    from slurmwrap.report.text_format import duration

    if spent_s < _PACE_S or not done or done >= of:
        return ""
    return f", about {duration(spent_s * (of - done) / done)} left"


def _check_folder(page: Path) -> None:
    """UsageError before a long replay, not after it."""
    if not page.resolve().parent.is_dir() or page.is_dir():
        raise UsageError(f"cannot write {page}: it is a directory, or lies in none", exit_code=1)


def _write(page: Path, text: str) -> None:
    """A link is followed. UsageError."""
    from slurmwrap.store.atomic_write import write_output_file

    try:
        write_output_file(page if page.exists() and not page.is_file() else page.resolve(), text)
    except OSError as error:
        raise UsageError(f"cannot write {page}: {error.strerror}", exit_code=1) from error


def _version() -> str:
    from slurmwrap import __version__

    return __version__


def _need_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        hint = "pip install 'slurmwrap[sim]'"
        raise UsageError("the model needs numpy, which is not installed", hint=hint, exit_code=1) from error


# Runs the three parts of a what-if study: of a large dump side by side, each in a process of its own.
# Jobs: below, starting Python twice costs more than it saves.
LARGE = 5_000
_LOOK_S = 0.5


def studied(submissions: Submissions, progress: Progress, *, large: int = LARGE) -> Study:
    """The same study either way. ValueError as of `study_from`."""
    if len(submissions.jobs) < large or (os.cpu_count() or 1) < 2:
        return study_from(
            submissions,
            Replay(
                plain=play_plain(submissions, progress),
                ours=play_ours(submissions, progress),
                failures=play_failures(submissions, progress),
            ),
        )
    # spawn: a fork of a process with threads (numpy has some) may hang
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        plain, failures = pool.submit(play_plain, submissions), pool.submit(play_failures, submissions)
        ours = play_ours(submissions, progress)
        _await([plain, failures], progress)
        return study_from(submissions, Replay(plain=plain.result(), ours=ours, failures=failures.result()))


def _await(parts: list[Future[Any]], progress: Progress) -> None:
    while True:
        done = wait(parts, timeout=_LOOK_S).done
        if len(done) == len(parts):
            return
        progress("slurmwrap is played; parts beside it", len(done), len(parts))
