"""The cluster at one moment: nodes, GPUs, partitions, topology, and intended changes to them. Pure."""
