"""Log files that gsub named for a job in its user's state directory, as an Epilog reads them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from slurmwrap.node_hooks import log_tails

UID = os.geteuid()


def name_logs(state: Path, content: str | dict[str, object]) -> bytes:
    (state / "job_logs").mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps({"cluster": "lab", "logs": content})
    (state / "job_logs" / "41").write_text(text)
    return os.fsencode(state)


def read_logs(state: bytes, since: float, *known: bytes) -> list[list[object]]:
    """What the Epilog's child sends."""
    sent: list[bytes] = []
    named = log_tails.named_logs(state, "lab", 41, UID)
    log_tails._send_named_logs(named, UID, since, set(known), sent.append)
    return [json.loads(line) for line in sent]


def test_the_epilog_sends_what_the_job_wrote_to_its_named_logs(tmp_path: Path) -> None:
    log, old, out = tmp_path / "t.log", tmp_path / "old.log", tmp_path / "41.out"
    for path, text in ((log, "before\nKeyError\n"), (old, "stale"), (out, "is read anyhow")):
        path.write_text(text)
    start = time.time()
    os.utime(old, (start - 100, start - 100))
    end = [7, log_tails.user_files.span(os.fsencode(log), UID, 0, None)["mark"]]
    state = name_logs(
        tmp_path, {str(log): [7, "00"], str(old): [], str(out): [], "relative.log": [], f"{tmp_path}/": 1}
    )
    assert read_logs(state, start, os.fsencode(out)) == [[str(log), "before\nKeyError\n", False, "", {"named": True}]]
    (tmp_path / "first").write_text("before\n")
    end[1] = log_tails.user_files.span(os.fsencode(tmp_path / "first"), UID, 0, None)["mark"]
    state = name_logs(tmp_path, {str(log): end})
    assert read_logs(state, start) == [[str(log), "KeyError\n", False, "", {"named": True}]]


@pytest.mark.parametrize(
    "content",
    [
        "", "[", "[]", "7", "null", '{"cluster": "lab"}', '{"cluster": "lab", "logs": [1]}', "[" * 100_000,
        '{"cluster": "lab", "logs": {"/\\ud800": []}}', '{"cluster": "other", "logs": {"/a": []}}', "\x00" * 70_000,
    ],
)  # fmt: skip
def test_invalid_content_names_no_log(tmp_path: Path, content: str) -> None:
    assert log_tails.named_logs(name_logs(tmp_path, content), "lab", 41, UID) == {}


@pytest.mark.parametrize("end", [None, 7, [7], [True, "x"], [-1, "x"], [1e9, "x"], ["7", "x"], [7, 7], [1 << 80, "x"]])
def test_an_invalid_end_of_a_log_counts_as_none(tmp_path: Path, end: object) -> None:
    assert log_tails.named_logs(name_logs(tmp_path, {"/a.log": end}), "lab", 41, UID) == {b"/a.log": None}


def test_names_in_a_link_a_fifo_or_a_file_of_another_user_are_not_read(tmp_path: Path) -> None:
    state = name_logs(tmp_path, {"/a.log": []})
    names = tmp_path / "job_logs" / "41"
    if UID == 0:
        os.chown(names, 65534, 65534)
        assert log_tails.named_logs(state, "lab", 41, UID) == {}
        os.chown(names, UID, UID)
    assert log_tails.named_logs(state, "lab", 41, UID) == {b"/a.log": None}
    names.rename(tmp_path / "elsewhere")
    names.symlink_to(tmp_path / "elsewhere")
    assert log_tails.named_logs(state, "lab", 41, UID) == {}
    names.unlink()
    os.mkfifo(names)
    assert log_tails.named_logs(state, "lab", 41, UID) == {}
