"""SHA-256 without OpenSSL where little is digested: loading it takes every gsub 2 ms, the digests themselves 20 µs.

Python's own module is the one that hashlib falls back to; the standard library's `random` spares itself hashlib in the
same way. What is large goes by hashlib, whose code for it is five times as fast.
"""

from __future__ import annotations

# bytes: here both ways take about the same, with the loading
_SMALL = 1 << 18

try:
    from _sha2 import sha256 as _small  # type: ignore[import-not-found,unused-ignore]  # since Python 3.12
except ImportError:
    try:
        from _sha256 import sha256 as _small  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        # A Python that was built without them.
        from hashlib import sha256 as _small


def sha256_hex(content: bytes) -> str:
    """64 hexadecimal digits."""
    if len(content) <= _SMALL:
        return str(_small(content).hexdigest())
    from hashlib import sha256

    return sha256(content).hexdigest()
