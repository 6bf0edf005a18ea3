"""Which users a reader of users' files may become."""

from __future__ import annotations

import os

import pytest

from slurmwrap.node_hooks.user_files import may_become


def test_no_reader_becomes_root() -> None:
    assert not may_become(0)
    assert not may_become(-1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_root_may_become_any_other_user() -> None:
    assert may_become(1)
    assert may_become(65534)
