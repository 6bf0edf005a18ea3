"""slurmwrap inputs: list, show, clear and block, for one user and for the site."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from slurmwrap.errors import RefusedError, UsageError
from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.prerun.static.job_inputs import digest
from slurmwrap.store.database import Database
from slurmwrap.store.serialize import to_json_dict
from slurmwrap.store.user_state_files import UserState

Run = Callable[..., Result]
UID = os.geteuid()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.h5"
    path.write_bytes(b"damaged")
    return path


def block_input(database: Path, path: Path, **changes: object) -> BlockedInput:
    base = BlockedInput(digest=digest(str(path)), path=str(path), uid=UID, reason="truncated", at=1e9, job_id=81)
    blocked = replace(base, **changes)  # type: ignore[arg-type]
    database.parent.mkdir(exist_ok=True)
    with Database.open(database) as store:
        store.block_input(blocked)
    return blocked


@pytest.fixture
def user_db(tmp_path: Path) -> Path:
    return tmp_path / "slurmwrap" / "user.db"


def test_an_empty_list_says_that_no_input_is_blocked(slurmwrap: Run) -> None:
    assert slurmwrap("inputs", "list").stdout == "No input is blocked.\n"


def test_an_input_is_listed_with_the_present_state_of_its_file(slurmwrap: Run, user_db: Path, data: Path) -> None:
    block_input(user_db, data)
    states = []
    for change in (lambda: None, lambda: data.write_bytes(b"mended"), data.unlink):
        change()
        states.append(json.loads(slurmwrap("inputs", "list", "--json").stdout)["rows"][0]["now"])
    assert states == ["same", "changed", "gone"]
    head, row = slurmwrap("inputs", "list").stdout.splitlines()
    assert head.split() == ["input", "binds", "job", "since", "now", "reason"]
    assert row.split()[-2:] == ["gone", "truncated"]


def test_show_prints_the_evidence_by_path_and_by_digest(slurmwrap: Run, user_db: Path, data: Path) -> None:
    blocked = block_input(user_db, data)
    cited = (Citation(source="slurm-81.out", line=7, text="OSError: truncated file\x1b[31m"),)
    diagnosis = Diagnosis(
        category="incorrect_inputs", domain="U", decision="blacklist_input", confidence=0.9, signature="data.corrupt",
        evidence=cited, input_path=str(data),
    )  # fmt: skip
    attempt = RunKey(cluster="lab", job_id=81, submit_time=10**9)
    with Database.open(user_db) as store:
        store.save_attempt(JobRun(attempt=attempt, address="81", uid=UID, diagnosis=diagnosis))
    shown = slurmwrap("inputs", "show", str(data)).stdout
    assert shown == slurmwrap("inputs", "show", blocked.digest[:12]).stdout
    assert "  slurm-81.out:7: OSError: truncated file\\x1b[31m\n" in shown
    assert shown.splitlines()[0] == str(data)
    assert json.loads(slurmwrap("inputs", "show", str(data), "--json").stdout)["evidence"] == [
        {"source": "slurm-81.out", "line": 7, "text": "OSError: truncated file\x1b[31m"}
    ]


def test_clear_frees_an_input_and_overrides_an_earlier_block_of_the_site(
    slurmwrap: Run, user_db: Path, data: Path
) -> None:
    blocked = block_input(user_db, data)
    result = slurmwrap("inputs", "clear", str(data))
    assert (result.exit_code, result.stdout) == (0, f"free again: {data}\n")
    assert slurmwrap("inputs", "list").stdout == "No input is blocked.\n"
    assert UserState(user_db.parent).freed_inputs()[blocked.digest] > blocked.at


def test_a_user_may_not_clear_a_block_for_everybody(slurmwrap: Run, user_db: Path, data: Path) -> None:
    block_input(user_db, data, uid=-1)
    result = slurmwrap("inputs", "clear", str(data))
    assert isinstance(result.exception, RefusedError)
    assert "only an administrator" in str(result.exception)
    assert json.loads(slurmwrap("inputs", "list", "--json").stdout)["rows"][0]["binds"] == "everybody"


def test_a_user_blocks_an_input_for_one_user_and_root_for_everybody(slurmwrap: Run, tmp_path: Path, data: Path) -> None:
    assert slurmwrap("inputs", "block", str(data), "--reason", "old").stdout == f"blocked: {data}\n"
    (blocked,) = json.loads(slurmwrap("inputs", "list", "--json").stdout)["rows"]
    assert (blocked["uid"], blocked["digest"], blocked["reason"], blocked["job_id"]) == (
        UID,
        digest(str(data)),
        "old",
        None,
    )
    if UID:
        return
    (tmp_path / "site").mkdir()
    slurmwrap("inputs", "block", str(data), "--reason", "old", site=True)
    with Database.open(tmp_path / "site" / "site.db", readonly=True) as store:
        assert [to_json_dict(b)["uid"] for b in store.blocked_inputs()] == [-1]
    assert slurmwrap("inputs", "clear", str(data), site=True).exit_code == 0
    with Database.open(tmp_path / "site" / "site.db", readonly=True) as store:
        assert store.blocked_inputs() == ()


@pytest.mark.parametrize("words", [("show", "nothing.h5"), ("clear", "nothing.h5"), ("block", "nothing.h5")])
def test_an_unknown_file_is_refused(slurmwrap: Run, words: tuple[str, str]) -> None:
    reason = ("--reason", "x") if words[0] == "block" else ()
    result = slurmwrap("inputs", *words, *reason)
    assert isinstance(result.exception, UsageError)
    assert "nothing.h5" in str(result.exception)
    assert result.exception.exit_code == 1


def test_a_directory_or_a_fifo_cannot_be_blocked(slurmwrap: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        result = slurmwrap("inputs", "block", str(path), "--reason", "x")
        assert isinstance(result.exception, UsageError)


@pytest.mark.skipif(UID != 0, reason="only root could open what a user cannot")
def test_root_does_not_follow_a_symbolic_link_of_a_user_to_a_file_of_root(slurmwrap: Run, tmp_path: Path) -> None:
    secret, home = tmp_path / "secret", tmp_path / "home"
    secret.write_text("root's")
    secret.chmod(0o600)
    home.mkdir()
    os.chown(home, 65534, 65534)
    link = home / "x.h5"
    link.symlink_to(secret)
    (tmp_path / "site").mkdir()
    result = slurmwrap("inputs", "block", str(link), "--reason", "x", site=True)
    assert isinstance(result.exception, UsageError)
    assert "cannot read" in str(result.exception)
    assert slurmwrap("inputs", "block", str(secret), "--reason", "x", site=True).exit_code == 0


def test_a_path_with_escape_sequences_is_never_printed_raw(slurmwrap: Run, tmp_path: Path) -> None:
    data = tmp_path / "x\x1b]0;evil\x07.h5"
    data.write_bytes(b"1")
    blocked = slurmwrap("inputs", "block", str(data), "--reason", "x")
    freed = slurmwrap("inputs", "clear", str(data))
    assert (blocked.exit_code, freed.exit_code) == (0, 0)
    assert "\x1b" not in blocked.stdout + freed.stdout


def test_files_of_a_directory_with_the_same_reason_share_a_line(slurmwrap: Run, user_db: Path) -> None:
    user_db.parent.mkdir()
    with Database.open(user_db) as store, store.transaction():
        for number in range(41):
            path = f"/data/shard-{number:03d}.tar"
            store.block_input(
                BlockedInput(
                    digest=f"{number:064d}", path=path, uid=UID, reason=f"{path}: does not exist", at=1e9, job_id=81
                )
            )
        store.block_input(BlockedInput(digest="f" * 64, path="/data/x.tar", uid=UID, reason="cut", at=2e9, job_id=82))
    lines = slurmwrap("inputs", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["input", "/data/x.tar", "/data/shard-[000-040].tar"]
    assert lines[2].split()[1] == "(41)" and lines[2].endswith("does not exist")

    def paths(*words: str) -> list[str]:
        return [row["path"] for row in json.loads(slurmwrap("inputs", "list", "--json", *words).stdout)["rows"]]

    assert paths("/data/x*") == paths("--job", "82") == paths("--since", "2030-01-01") == ["/data/x.tar"]
    assert len(paths("--all")) == 42
    assert json.loads(slurmwrap("inputs", "list", "--json", "--limit", "40").stdout)["more"] == 2
    assert slurmwrap("inputs", "clear", "--job", "81").stdout.count("free again: ") == 41
    assert paths() == ["/data/x.tar"]
    freed = json.loads(slurmwrap("inputs", "list", "--freed", "--json").stdout)["rows"]
    assert sorted(one["digest"] for one in freed) == sorted(f"{number:064d}" for number in range(41))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("clear",), "name the files to free, or the job with --job"),
        (("clear", "--job", "9"), "job 9 made no input blocked"),
        (("clear", "/no/such/file"), "'/no/such/file' is not blocked"),
    ],
)
def test_clear_without_a_blocked_input_is_an_error(slurmwrap: Run, words: tuple[str, ...], message: str) -> None:
    wrong = slurmwrap("inputs", *words).exception
    assert isinstance(wrong, UsageError)
    assert (str(wrong), wrong.hint) == (message, "slurmwrap inputs list")
