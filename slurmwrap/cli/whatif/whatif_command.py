"""The command `slurmwrap whatif`: replay a site's own month under plain Slurm and under slurmwrap (adapter)."""

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

if TYPE_CHECKING:
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.sim.trace.trace_load import Load
    from slurmwrap.sim.whatif.cluster_shape import ClusterShape
    from slurmwrap.sim.whatif.whatif_replay import Progress, Submissions
    from slurmwrap.sim.whatif.whatif_study import Study


PAGE = Path("whatif.html")
# Seconds before the first line of progress, and between two updates.
_QUIET_S = 1.0
_EVERY_S = 0.2
# Seconds after which the remaining time can be estimated.
_PACE_S = 3.0
# From this number of jobs the replay takes minutes.
_SLOW_JOBS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterSize:
    """The size of the cluster from the options: all of them, or none."""

    servers: int | None
    gpus: int | None
    cpus: int | None
    mem_gb: float | None


def whatif(
    sacct: Annotated[
        Path, typer.Option(metavar="FILE", help="Output of sacct, plain or gzipped; - for standard input.")
    ],
    profiles: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Speeds by job name, to tune CPUs and memory: from slurmwrap profile export, or a CSV."
        ),
    ] = None,
    nodes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The cluster: output of scontrol show node -d -o.")
    ] = None,
    servers: Annotated[int | None, typer.Option(help="Instead of --nodes: the number of equal servers.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of each server.")] = None,
    cpus: Annotated[int | None, typer.Option(help="CPUs of each server.")] = None,
    mem_gb: Annotated[float | None, typer.Option(help="Memory of each server.")] = None,
    since: Annotated[
        str, typer.Option(metavar="DATE", help="Start of the dump: the -S option of sacct.  [default: guess]")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page.  [default: whatif.html]")
    ] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Name users u1, u2, … on the page.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every number as JSON; a page only with -o.")] = False,
) -> None:
    """What would slurmwrap have done for your cluster last month?

    Replays the jobs in sacct's records in a model of Slurm, without slurmwrap, with
    it, and with its order of the queue, and compares this with what really happened:
    queueing delay, JCT, locality, GPU-hours lost. Nothing is installed or changed; no
    controller is asked.

    \b
    On the login node:
      SLURM_TIME_FORMAT=%s sacct -a -D -X -P -S now-30days -o JobID,User,\\
    Partition,State,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,\\
    ReqTRES,AllocTRES,NNodes,NodeList,ExitCode,JobName > month.psv
      scontrol show node -d -o > nodes.txt
      slurmwrap whatif --sacct month.psv --nodes nodes.txt -o whatif.html
    \b
    To share the page, without user names:
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
        _check_page_path(page)
    study = _make_study(
        _StudyInput(sacct=sacct, profiles=profiles, nodes=nodes, since=since, anonymous=anonymous),
        _ClusterSize(servers=servers, gpus=gpus, cpus=cpus, mem_gb=mem_gb),
        console,
    )
    if page is not None:
        from slurmwrap.cli.whatif import whatif_page

        _write_page(page, whatif_page.render_page(study, source=sacct.name, made_by=_get_version()))
    if as_json:
        typer.echo(format_json_document("whatif", to_json_dict(study)))
    else:
        from slurmwrap.cli.terminal import choose_painter, columns

        paint = choose_painter()
        typer.echo(whatif_output.format_study(study, page or PAGE, width=columns(most=100), paint=paint), nl=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StudyInput:
    sacct: Path
    profiles: Path | None
    nodes: Path | None
    since: str
    anonymous: bool


def _make_study(given: _StudyInput, size: _ClusterSize, console: Console) -> Study:
    _require_numpy()
    from slurmwrap.sim.trace.read_trace import read_load
    from slurmwrap.sim.whatif.whatif_replay import StudyOptions, submissions_of

    known = {} if given.profiles is None else _read_profiles(given.profiles)
    by_hand = _make_cluster_from_options(size, given.nodes)
    load = read_load(given.sacct)
    if not load.actual:
        raise TraceError(
            f"{given.sacct}: no dump of sacct, or no job with GPUs ever started in it", hint=_format_sacct_hint()
        )
    site = by_hand or _make_cluster_from_data(load, given)
    asked = StudyOptions(since_s=_parse_since(given.since, load), anonymous=given.anonymous)
    try:
        submissions = submissions_of(load, site, known, asked)
        if len(submissions.jobs) >= _SLOW_JOBS:
            console.say(
                f"{len(submissions.jobs):,} jobs on {len(site.servers):,} nodes take minutes; fewer days take less"
            )
        return replay_study(submissions, _make_progress(console))
    except ValueError as error:
        raise TraceError(f"{given.sacct}: {error}", hint="dump a longer time, or give --since") from error
    finally:
        console.progress_done()


def _format_sacct_hint() -> str:
    from slurmwrap.sim.trace.sacct_dump import COMMAND

    return f"wanted is what this prints: {COMMAND}"


def _read_profiles(path: Path) -> Mapping[str, ResourceProfile]:
    from slurmwrap.cli.profile.profile_files import read_profiles

    return {profile.key: profile for profile in read_profiles(path, time.time())}


def _make_cluster_from_options(size: _ClusterSize, nodes: Path | None) -> ClusterShape | None:
    """Return the cluster that the options describe; None without such options.

    Raise UsageError if the options are incomplete, or if --nodes is given as well.
    """
    from slurmwrap.sim.sim_job import make_equal_servers
    from slurmwrap.sim.whatif.cluster_shape import ClusterShape

    values = (size.servers, size.gpus, size.cpus, size.mem_gb)
    if all(one is None for one in values):
        return None
    if nodes is not None or size.servers is None or size.gpus is None or size.cpus is None or size.mem_gb is None:
        hint = "give --nodes, or all of --servers, --gpus, --cpus and --mem-gb, or neither"
        raise UsageError("the cluster is described incompletely or twice", hint=hint, exit_code=1)
    try:
        servers = make_equal_servers(size.servers, gpus=size.gpus, cpus=size.cpus, mem_gb=size.mem_gb)
    except ValueError as error:
        raise UsageError(str(error), exit_code=1) from error
    return ClusterShape(servers=servers, source="options")


def _make_cluster_from_data(load: Load, given: _StudyInput) -> ClusterShape:
    from slurmwrap.sim.whatif.cluster_shape import cluster_shape_from_dump, cluster_shape_from_nodes
    from slurmwrap.slurm.scontrol_parser import parse_nodes

    try:
        if given.nodes is None:
            return cluster_shape_from_dump(load)
        site = cluster_shape_from_nodes(parse_nodes(given.nodes.read_text(encoding="utf-8", errors="replace")))
    except ValueError as error:
        raise TraceError(
            f"{given.sacct}: {error}", hint="give --nodes, or --servers, --gpus, --cpus and --mem-gb"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read {given.nodes}: {error.strerror}", exit_code=1) from error
    if not site.servers:
        raise TraceError(f"{given.nodes}: no node with GPUs in it", hint="scontrol show node -d -o > nodes.txt")
    return site


def _parse_since(text: str, load: Load) -> float | None:
    """Return --since in seconds on the dump's clock, whose local times count as UTC; None if it is not given."""
    from datetime import UTC

    from slurmwrap.cli import terminal

    if not text:
        return None
    try:
        return terminal.since(text, time.time(), UTC) - (load.epoch or 0.0)
    except UsageError as error:
        raise UsageError(str(error), hint=error.hint, exit_code=1) from error


def _make_progress(console: Console) -> Progress:
    """Return a callback that redraws a progress line, after the first second, with the time left of each part."""
    last = time.monotonic() + _QUIET_S
    begun: dict[str, float] = {}

    def show(part: str, done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        since = begun.setdefault(part, now)
        if now - last >= _EVERY_S:
            last = now
            console.redraw(f"{part}: {done:,} of {of:,}{format_time_left(now - since, done, of)}"[: columns()])

    return show


def format_time_left(spent_s: float, done: int, of: int) -> str:
    """Return how long the rest takes at the present pace; "" while that cannot be estimated."""
    from slurmwrap.report.text_format import duration

    if spent_s < _PACE_S or not done or done >= of:
        return ""
    return f", about {duration(spent_s * (of - done) / done)} left"


def _check_page_path(page: Path) -> None:
    """Raise UsageError if the page cannot be written. Called before the long replay."""
    if not page.resolve().parent.is_dir() or page.is_dir():
        raise UsageError(f"cannot write {page}: it is a directory, or its directory does not exist", exit_code=1)


def _write_page(page: Path, text: str) -> None:
    """Write the page; a symbolic link is followed. Raise UsageError if that fails."""
    from slurmwrap.store.atomic_write import write_output_file

    try:
        write_output_file(page if page.exists() and not page.is_file() else page.resolve(), text)
    except OSError as error:
        raise UsageError(f"cannot write {page}: {error.strerror}", exit_code=1) from error


def _get_version() -> str:
    from slurmwrap import __version__

    return __version__


def _require_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        hint = "pip install 'slurmwrap[sim]'"
        raise UsageError("the model needs numpy, which is not installed", hint=hint, exit_code=1) from error


# The parts of a what-if study run in parallel processes from this number of jobs. With fewer jobs, starting
# Python twice takes longer than it saves.
PARALLEL_JOBS = 5_000
# Seconds between two checks whether the other processes have ended.
_LOOK_S = 0.5


def replay_study(submissions: Submissions, progress: Progress, *, large: int = PARALLEL_JOBS) -> Study:
    """Replay the submissions, in parallel processes if there are at least `large` jobs; the result is the same.

    Raise ValueError as `study_from_replay` does.
    """
    # Imported here because it needs numpy, which is optional: `slurmwrap completion` loads every command.
    from slurmwrap.sim.whatif.whatif_replay import (
        Replay,
        play_failures,
        play_ordered,
        play_ours,
        play_plain,
        study_from_replay,
    )

    if len(submissions.jobs) < large or (os.cpu_count() or 1) < 2:
        return study_from_replay(
            submissions,
            Replay(
                plain=play_plain(submissions, progress),
                ours=play_ours(submissions, progress),
                ordered=play_ordered(submissions, progress),
                failures=play_failures(submissions, progress),
            ),
        )
    # spawn, because a fork of a process with threads (numpy starts some) may hang.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        plain, ordered = pool.submit(play_plain, submissions), pool.submit(play_ordered, submissions)
        failures = pool.submit(play_failures, submissions)
        ours = play_ours(submissions, progress)
        _wait_for_parts([plain, failures, ordered], progress)
        replay = Replay(plain=plain.result(), ours=ours, ordered=ordered.result(), failures=failures.result())
        return study_from_replay(submissions, replay)


def _wait_for_parts(parts: list[Future[Any]], progress: Progress) -> None:
    while True:
        done = wait(parts, timeout=_LOOK_S).done
        if len(done) == len(parts):
            return
        progress("slurmwrap is replayed; other parts done", len(done), len(parts))
