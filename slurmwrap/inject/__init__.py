"""Code that runs inside the user's Python: the step counter and the write guard. Standard library, Python 3.6 syntax.

Programs in an environment with slurmwrap installed can use `from slurmwrap.inject import step` (slurmwrap_step.step).
"""

from .slurmwrap_step import step

__all__ = ["step"]
