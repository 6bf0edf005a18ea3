"""The reconciler: ingest observations, judge every run that ended, act, report. Adapters are passed in as arguments.

It can be killed at any instruction; then nothing is lost and nothing is done twice, because:
  - a run is on the to-do list (stored and not reconciled) before its observations leave the spool;
  - what was found out about it is stored in one transaction, so it is judged once;
  - an action is stored as intended before Slurm is asked, and only when all actions of the run are stored;
  - after a restart, the first action that is not marked as done is compared with Slurm's present state before it is
    done.

The key's SubmitTime is stored while the run is visible, because Slurm overwrites it with the requeue (see
policy/run_from_slurm.py for runs that were never seen).
"""

from slurmwrap.reconcile.ingest_spool import ingest
from slurmwrap.reconcile.reconcile_context import PassSummary, Scope, Services, SlurmJobs
from slurmwrap.reconcile.reconcile_pass import reconcile_once, watch

__all__ = ["PassSummary", "Scope", "Services", "SlurmJobs", "ingest", "reconcile_once", "watch"]
