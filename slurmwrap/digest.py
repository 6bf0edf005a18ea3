"""SHA-256 of small content without OpenSSL: importing hashlib costs every gsub 2 ms, the digests themselves 20 µs.

For small content it uses the module of Python that hashlib falls back to, as the standard library's `random` does to
avoid hashlib. Large content is digested by hashlib, whose code is five times as fast.
"""

from __future__ import annotations

# Bytes. At this size both ways take about the same time, with the import of hashlib included.
_SMALL = 1 << 18

try:
    from _sha2 import sha256 as _small  # type: ignore[import-not-found,unused-ignore]  # since Python 3.12
except ImportError:
    try:
        from _sha256 import sha256 as _small  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        # This Python was built without these modules.
        from hashlib import sha256 as _small


def sha256_hex(content: bytes) -> str:
    """Return the digest as 64 hexadecimal digits."""
    if len(content) <= _SMALL:
        return str(_small(content).hexdigest())
    from hashlib import sha256

    return sha256(content).hexdigest()
