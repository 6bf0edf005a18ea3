"""Write the observation of a submission or a pre-run to the user's and the site's spool.

gsub imports this module while it waits for sbatch.
"""

from __future__ import annotations

from contextlib import suppress

from slurmwrap.errors import StoreError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.observation import Context, Observation
from slurmwrap.store.serialize import to_json_dict
from slurmwrap.store.spool_writer import make_nonce, start_sealed_write, write_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slurmwrap.config.load_config import SiteSection
    from slurmwrap.model.job_run import PrerunRecord
    from slurmwrap.model.submission import Submission

    # Writes one observation to the site's spool. It can be called once.
    Tell = Callable[[Observation], str]


def start_site_report(site: SiteSection) -> Tell:
    """Start the process that seals the site's copy, which then runs while gsub waits for sbatch."""
    return start_sealed_write(site.spool, socket=site.munge_socket)


def leave_submission(record: Submission, uid: int, spool: str, publish: Tell | None) -> None:
    """Record a submission in the user's own spool, and by `publish` in the site's.

    Raise StoreError if the user's own spool cannot be written.
    """
    facts = to_json_dict(record)
    note = Observation(
        nonce=make_nonce(), cluster=record.cluster, job_id=record.job_id, context=Context.SUBMIT, at=record.at, uid=uid,
        facts={"submission": facts},
    )  # fmt: skip
    # A call may contain secrets, and the site needs none.
    _leave(note, replace(note, facts={"submission": {**facts, "call": None}}), spool, publish)


def leave_prerun(record: PrerunRecord, uid: int, spool: str, publish: Tell | None) -> None:
    """Record a pre-run in the same way, under the id of the job that waits for it."""
    facts = {"prerun": to_json_dict(record)}
    job_id = record.job_id or record.prerun_job_id
    note = Observation(
        nonce=make_nonce(), cluster=record.cluster, job_id=job_id, context=Context.PRERUN, at=record.at, uid=uid,
        facts=facts,
    )  # fmt: skip
    _leave(note, note, spool, publish)


def _leave(note: Observation, public: Observation, spool: str, publish: Tell | None) -> None:
    write_plain(spool, note)
    if publish is not None:
        # The site's copy is optional: the user's own has been written.
        with suppress(OSError, StoreError):
            publish(public)
