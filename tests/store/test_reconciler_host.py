"""A second host does not run the site's reconciler while another one does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurmwrap.errors import StoreError
from slurmwrap.store.reconciler_host import FILE, VALID_S, hold_reconciler_host, read_reconciler_host

OWN = frozenset({os.geteuid()})


@pytest.fixture
def published(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def test_a_second_host_is_refused_until_the_first_one_ends_or_is_silent(published: Path) -> None:
    now = [1000.0]
    with hold_reconciler_host(published, "ctl0", OWN, lambda: now[0]) as renew:
        with hold_reconciler_host(published, "ctl0", OWN, lambda: now[0]):
            pass  # the lock of the database excludes a second process of the same host
        renew()
        now[0] += VALID_S - 1
        with (
            pytest.raises(StoreError, match=r"runs on ctl0 \(last pass 299 s ago\)"),
            hold_reconciler_host(published, "ctl1", OWN, lambda: now[0]),
        ):
            pass
        assert read_reconciler_host(published, OWN) == ("ctl0", 1000.0)
        now[0] += 1
        with hold_reconciler_host(published, "ctl1", OWN, lambda: now[0]):
            with pytest.raises(StoreError, match="runs on ctl1"):
                renew()  # the first one has come back: it stops
            assert read_reconciler_host(published, OWN)[0] == "ctl1"
    assert not (published / FILE).exists()


def test_a_record_of_another_user_or_without_a_directory_does_not_count(published: Path) -> None:
    (published / FILE).write_text(json.dumps({"host": "x", "at": 1000.0}))
    (published / FILE).chmod(0o666)
    with hold_reconciler_host(published, "ctl0", OWN, lambda: 1000.0):
        assert read_reconciler_host(published, OWN) == ("ctl0", 1000.0)
    with hold_reconciler_host(published / "missing", "ctl0", OWN, lambda: 1000.0) as renew:
        renew()
    assert list(published.iterdir()) == []
