"""A file that its user exchanges between a reader's check and its open: no other file is read, and nothing blocks.

Each reader runs with an os.open that first puts a trap at the path, as a user would do with very good luck. A reader
that checked the path before and trusts the result would read the trap.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmwrap.cli.watch import job_status
from slurmwrap.host.read_loss_curve import LossCurveFiles
from slurmwrap.host.read_running_jobs import RunningJobReader
from slurmwrap.host.read_user_file import StepFiles, UserLogs, read_inputs_as
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_read import RunningRead
from slurmwrap.model.submission import PackedArray
from slurmwrap.node_hooks import log_tails, step_counts, user_files
from slurmwrap.prerun.static.job_inputs import digest
from slurmwrap.store.pack_results import read_members
from slurmwrap.store.published_files import read_trusted
from slurmwrap.store.spool_reader import SealedSpool

USER = 65534
END = 1_790_003_600
SECRET = "SECRET step 3: loss 0.25\n" * 9
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")


def make_run(path: Path) -> JobRun:
    key = RunKey(cluster="lab", job_id=41, submit_time=1)
    return JobRun(
        attempt=key, address="41", uid=USER, state="COMPLETED", std_out=str(path), std_err=str(path),
        start_time=END - 3600, end_time=END, gpus=1, nodes=("n1",),
    )  # fmt: skip


def read_epilog_tail(path: Path) -> object:
    try:
        return user_files.tail(os.fsencode(path), USER, 1000)
    except (user_files.Unreadable, OSError) as error:
        return str(error)


def read_watched_output(path: Path) -> object:
    file = job_status.open_output(str(path))
    if file is None:
        return None
    with file:
        return file.read()


def read_running_job(path: Path) -> object:
    return RunningJobReader()(USER, [RunningRead(run=make_run(path))])


def read_step_count(path: Path) -> object:
    return step_counts.counted(os.fsencode(path.parent), 41, USER, END - 3600.0, 0)


def read_spool(path: Path) -> object:
    spool = SealedSpool(path.parent, "/nonexistent/socket", dict, {0}, "lab")
    return [(one.name, one.item) for one in spool.collect()]


def read_named_logs(path: Path) -> object:
    (path.parent / "job_logs").mkdir(exist_ok=True)
    path.rename(path.parent / "job_logs" / "41")
    return log_tails.named_logs(os.fsencode(path.parent), "lab", 41, USER)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "output by an Epilog": ("out", read_epilog_tail),
    "output by the reconciler": ("out", lambda path: UserLogs().tails(make_run(path))),
    "loss in the output": ("out", lambda path: LossCurveFiles()(make_run(path))),
    "output of a running job": ("out", read_running_job),
    "output by watch": ("out", read_watched_output),
    "step count by a hook": ("41.0.n1.700", read_step_count),
    "step count by the reconciler": ("41.0.n1.700", lambda path: dict(StepFiles()(make_run(path), str(path.parent)))),
    "losses of a step directory": (
        "41.0.n1.700.loss",
        lambda path: StepFiles().losses(make_run(path), str(path.parent)),
    ),
    "input": ("data.csv", lambda path: [one.digest for one in read_inputs_as(USER, (str(path),))]),
    "names of logs": ("41", read_named_logs),
    "spool": ("1700000000000000-n0-" + "a" * 32 + ".obs", read_spool),
    "published file": ("published.json", lambda path: read_trusted(str(path.parent), path.name, {USER})),
    "member of a pack": (
        "0.json",
        lambda path: read_members(PackedArray(directory=str(path.parent.parent), members=1, array="0")),
    ),
}  # fmt: skip


def put_link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def put_hard_link(path: Path, secret: Path) -> None:
    path.hardlink_to(secret)


def put_fifo(path: Path, secret: Path) -> None:
    del secret
    os.mkfifo(path, 0o666)
    os.chown(path, USER, USER)


def put_device(path: Path, secret: Path) -> None:
    del secret
    path.symlink_to("/dev/zero")


@pytest.fixture
def work(open_dir: Path) -> Path:
    """The user's directory; its parent has a file of root that only root can read."""
    path = open_dir / "members"
    path.mkdir(mode=0o755)
    os.chown(path, USER, USER)
    return path


@pytest.fixture
def secret(open_dir: Path) -> Path:
    path = open_dir / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def exchange_before_open(monkeypatch: pytest.MonkeyPatch, path: Path, put: Callable[[], object]) -> None:
    """Let os.open call `put` in place of the file at `path`, just before it opens that path. Works in a fork, too."""
    real_open, done = os.open, [False]

    def exchange(opened: Any, *rest: Any, **known: Any) -> int:
        if not done[0] and os.path.basename(os.fsdecode(opened)) == path.name:  # noqa: PTH119 - bytes or str
            done[0] = True
            for place in (path, path.parent / "job_logs" / path.name):
                if place.exists():
                    place.unlink()
                    put()
                    if place != path:
                        path.rename(place)
        return real_open(opened, *rest, **known)

    monkeypatch.setattr(os, "open", exchange)


# Hard links to a file of root: readers that run as the file's own user may read what that user may. In the spool and
# in the published directory no user can replace a file of root.
READ_WITH_OWN_RIGHTS = ("output by watch", "member of a pack", "published file", "spool")
EXCHANGES = [(reader, put) for reader in READERS for put in (put_link, put_fifo, put_device)]
EXCHANGES += [(reader, put_hard_link) for reader in READERS if reader not in READ_WITH_OWN_RIGHTS]


@pytest.mark.parametrize(("reader", "put"), EXCHANGES)
def test_a_file_exchanged_just_before_it_is_opened_reveals_nothing(
    work: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, reader: str, put: Callable[[Path, Path], None]
) -> None:
    name, read = READERS[reader]
    path = work / name
    path.write_text("the user's own\n")
    os.chown(path, USER, USER)
    aside = work.parent / "aside"
    aside.mkdir()
    put(aside / name, secret)
    for folder in (aside, *([] if reader == "published file" else [work])):
        folder.chmod(0o777)  # a reader that became the user puts the trap there
    exchange_before_open(monkeypatch, path, lambda: (aside / name).rename(path))
    said = repr(read(path))
    assert not (aside / name).exists() and not (aside / name).is_symlink(), "the trap was put in place"
    assert "SECRET" not in said and "0.25" not in said and digest(str(secret)) not in said
    assert "\\x00\\x00" not in said
