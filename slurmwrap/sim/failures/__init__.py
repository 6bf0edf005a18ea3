"""What failures cost, and what of that pre-run, adaptive retry and node exclusion save, in GPU-hours with intervals.

`study(jobs, servers=…, settings=FailureSettings(), seeds=range(10), config=Config())` draws failures at published rates
(rates.py), plays them in each arm (arms.py) and gives a FailureStudy; `study_of_dump` takes the failures that a site's
own dump tells; `inject` only says which jobs fail, of what and when. tell.py has the table, the text and the figures
for a plot.
"""

from slurmwrap.sim.failures.draw import FailingJob, inject
from slurmwrap.sim.failures.record import ArmResult, FailureStudy, Interval
from slurmwrap.sim.failures.settings import FailureSettings
from slurmwrap.sim.failures.study import MOST_JOBS, study, study_of_dump

__all__ = [
    "MOST_JOBS",
    "ArmResult",
    "FailingJob",
    "FailureSettings",
    "FailureStudy",
    "Interval",
    "inject",
    "study",
    "study_of_dump",
]
