"""The digest without OpenSSL equals that of hashlib."""

from __future__ import annotations

import hashlib
import subprocess
import sys

from slurmwrap.digest import sha256_hex


def test_the_digest_equals_hashlibs_for_every_size() -> None:
    for size in (0, 1, 64, 1 << 18, (1 << 18) + 1, 3_000_000):
        content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assert sha256_hex(content) == hashlib.sha256(content).hexdigest(), size


def test_small_contents_are_digested_without_openssl() -> None:
    code = "import sys; from slurmwrap.digest import sha256_hex; sha256_hex(b'x'); print('_hashlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
