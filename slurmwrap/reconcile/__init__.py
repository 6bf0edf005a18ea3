"""The order of steps from observations to actions: ingest, judge every run that ended, act, report. Edges are handed
in.

Written so that being killed at any instruction loses nothing and does nothing twice:
  - a run is on the to-do list (an attempt that is not reconciled) before its observations leave the spool;
  - what was found out of it is one transaction; it is judged once;
  - an action is written as intended, durably, before Slurm is asked, and only when all of the run's actions are;
  - the first action that is not ticked off is compared with Slurm's present state before it is done.
The key's SubmitTime is remembered while the run is seen; Slurm overwrites it with the requeue (see
policy/run_from_slurm.py for runs that were never seen).
"""

from slurmwrap.reconcile.ingest_spool import ingest
from slurmwrap.reconcile.reconcile_context import PassSummary, Scope, Services, SlurmJobs
from slurmwrap.reconcile.reconcile_pass import reconcile_once, watch

__all__ = ["PassSummary", "Scope", "Services", "SlurmJobs", "ingest", "reconcile_once", "watch"]
