"""What runs inside the user's Python: the step counter and its company. Standard library, Python 3.6 syntax.

`from slurmwrap.inject import step` is slurmwrap_step.step for programs whose environment has slurmwrap installed.
"""

from .slurmwrap_step import step

__all__ = ["step"]
