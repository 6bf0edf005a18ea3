"""`gsub --explain` advises to copy data for which a job waits, by its own pre-run or by its mount's published speed."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from test_expected_run_time import SCRIPT, job
from test_submit import FakeMemory, FakeSlurm, context, request

from slurmwrap.console import Console
from slurmwrap.gsub.prepare import prepare
from slurmwrap.gsub.submit import run
from slurmwrap.model.resource_profile import DataLoading, ResourceProfile
from slurmwrap.profiling.job_key import derive_published_key, derive_site_key
from slurmwrap.protocols import Published

STALLED = DataLoading(
    workers=2, fetch_s=0.2, cpu_s=0.02, stall_s=0.18, compute_s=0.02, wait_s=0.08, batch_mib=10.0, mount="/scratch"
)
CACHED = replace(STALLED, fetch_s=0.021, stall_s=0.001, wait_s=0.0)


@pytest.mark.parametrize(
    ("loading", "mounts", "advised"),
    [
        (STALLED, {}, "about 5 times faster"),
        (CACHED, {}, ""),
        (CACHED, {"/scratch": 50.0}, "about 5.5 times faster"),
        (CACHED, {"/home": 50.0}, ""),
    ],
)
def test_explain_advises_to_copy_the_data(loading: DataLoading, mounts: dict[str, float], advised: str) -> None:
    key = derive_published_key(derive_site_key(1001, job().key))
    published = Published(profiles=(ResourceProfile(key=key, runs=1, loading=loading),), mounts=mounts)
    at, stream = context(FakeSlurm(), FakeMemory(), published=published), StringIO()
    prepared = prepare(request("--explain", "--dry-run", script=SCRIPT), at)
    run(prepared, at, Console(program="gsub", stream=stream))
    found = [line for line in stream.getvalue().splitlines() if "$TMPDIR" in line]
    assert len(found) == bool(advised)
    assert advised in "".join(found)
