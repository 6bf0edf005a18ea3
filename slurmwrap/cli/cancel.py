"""`slurmwrap cancel`: end one member of a packed array (gsub --pack). The others of its array task go on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap.cli import list_options
from slurmwrap.cli.member_runs import find_packed_array
from slurmwrap.cli.record_access import find_record_source
from slurmwrap.cli.slurm_lookup import find_records_of_cluster, resolve_cluster
from slurmwrap.cli.why import check_job_id
from slurmwrap.config.load_config import load
from slurmwrap.errors import SlurmwrapError, UsageError
from slurmwrap.store.pack_results import find_member_task, read_members, request_cancel


def cancel(
    member: Annotated[str, typer.Argument(metavar="JOBID_INDEX", help="77_5: member 5 of the packed array 77.")],
    given_cluster: list_options.Cluster = "",
) -> None:
    """Cancel one member of a packed array.

    It gets SIGTERM, and SIGKILL 30 seconds later. A member that has not started is not run. scancel ends whole array
    tasks, with all their members.

    \b
    Examples:
      slurmwrap cancel 77_5
      scancel 77_4                          a whole array task with its members
    """
    head, _, index = check_job_id(member).partition("_")
    config = load(os.environ)
    source = find_record_source(config, os.environ, os.geteuid())
    cluster = resolve_cluster(given_cluster, source, config)
    pack = find_packed_array(find_records_of_cluster(source, head, config, cluster), int(head), source.uid)
    task = None if pack is None or not index else find_member_task(pack, int(head), int(index))
    if pack is None or task is None:
        scancel = f"scancel -M {cluster} {member}" if given_cluster else f"scancel {member}"
        raise UsageError(f"{member} is no member of a packed array of yours", hint=f"Any other job: {scancel}")
    known = {one.index: one.state for one in read_members(pack)}.get(int(index), "")
    if known in ("completed", "failed", "cancelled"):
        raise SlurmwrapError(f"member {member} has ended: it is {known}")
    try:
        request_cancel(Path(pack.directory), int(index))
    except OSError as error:
        raise SlurmwrapError(f"{pack.directory}: {error.strerror}") from error
    typer.echo(f"member {member} is cancelled; the others of task {task} go on")
