"""The order of steps from a request to its submission, its pre-run and its release.

    prepare   request + memory + snapshot        → Prepared   nothing outside has changed yet
    send      Prepared                           → Sent       the real job first, then its pre-run
    conclude  the pre-run's Verdict, on the node → PrerunRecord: plan again, apply, let the job go; or cancel it

`conclude` is imported from its own module: only the pre-run job needs it, and gsub would pay for it at every start.

Edges are handed in as a Desk. Whatever of ours fails in `prepare` leaves the user's job unharmed: the caller submits
it unchanged.
"""

from slurmwrap.submit.desk import Desk, Prepared, Sent, TrialJob, Trials
from slurmwrap.submit.prepare import describe, prepare
from slurmwrap.submit.send import sbatch_call, send

__all__ = [
    "Desk",
    "Prepared",
    "Sent",
    "TrialJob",
    "Trials",
    "describe",
    "prepare",
    "sbatch_call",
    "send",
]
