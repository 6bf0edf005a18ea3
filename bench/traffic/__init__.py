"""Data-parallel training of public architectures on loopback: what its processes really send."""
