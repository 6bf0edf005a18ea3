"""Resource profiles of jobs: profile keys, the CPU and memory models, and merging of measurements. Pure."""
