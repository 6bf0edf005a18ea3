"""gsub reads the site's sealed diagnoses of earlier submissions before it refuses a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.submission import Submission
from slurmwrap.store.published_files import FilePublisher
from slurmwrap.store.sealed_diagnoses import read_published_ends
from slurmwrap.store.serialize import to_json_dict
from slurmwrap.store.spool_writer import write_plain
from slurmwrap.store.user_state_files import UserState

UID = 1001


def make_submission(job_id: int, fingerprint: str = "f1") -> Submission:
    return Submission(
        cluster="lab",
        job_id=job_id,
        uid=UID,
        user="ada",
        at=float(job_id * 1000),
        script_sha256="aa",
        fingerprint=fingerprint,
    )


def make_run(job_id: int, category: str, decision: str, *, domain: str = "U", uid: int = UID) -> JobRun:
    diagnosis = Diagnosis(
        category=category, domain=domain, decision=decision, confidence=1, signature="s", advice=f"mend {job_id}"
    )
    key = RunKey(cluster="lab", job_id=job_id, submit_time=job_id * 1000)
    return JobRun(attempt=key, uid=uid, state="FAILED", end_time=job_id * 1000 + 60, diagnosis=diagnosis)


class Site:
    """A site that publishes diagnoses without MUNGE."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "published"
        self.directory.mkdir(mode=0o755)
        self.state = UserState(tmp_path / "state")
        self.state.spool.mkdir(parents=True)
        self.opened = 0
        self.publisher = FilePublisher(self.directory, "", lambda payload, *, socket, uid_restriction=None: payload)

    def submit(self, *submissions: Submission) -> None:
        """Write submissions to the spool as gsub does; no reconciler reads them."""
        for one in submissions:
            note = Observation(
                nonce=f"{one.job_id:032x}",
                cluster="lab",
                job_id=one.job_id,
                context=Context.SUBMIT,
                at=one.at,
                uid=UID,
                facts={"submission": to_json_dict(one)},
            )
            write_plain(self.state.spool, note)

    def tell(self, *records: JobRun) -> None:
        for record in records:
            self.publisher.tell_owner(record, ())

    def failures(self, fingerprint: str = "f1") -> list[tuple[int, str]]:
        def unseal(content: bytes) -> tuple[bytes, int] | None:
            self.opened += 1
            return content, 0

        same = [one for one in self.state.submitted("aa") if one.fingerprint == fingerprint]
        diagnosed = read_published_ends(same, self.directory, unseal, {0})
        past_failures = self.state.failed_before("aa", fingerprint=fingerprint, diagnosed=diagnosed)
        return [(failure.job_id, failure.reason) for failure in past_failures]


def test_published_failures_are_listed_newest_first(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(make_submission(81), make_submission(82))
    site.tell(make_run(81, "gpu_oom", "stop"), make_run(82, "semantic_error", "stop"))
    assert site.failures() == [(82, "mend 82"), (81, "mend 81")]


def test_a_success_clears_earlier_failures(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(*(make_submission(n) for n in (81, 82, 83)))
    site.tell(
        make_run(81, "gpu_oom", "stop"), make_run(82, "success", "none", domain=""), make_run(83, "gpu_oom", "stop")
    )
    assert site.failures() == [(83, "mend 83")]


def test_runs_with_another_fingerprint_neither_count_nor_clear(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(make_submission(81), make_submission(82, "f2"), make_submission(83, "f2"), make_submission(84))
    site.tell(
        make_run(81, "gpu_oom", "stop"), make_run(82, "success", "none", domain=""), make_run(83, "gpu_oom", "stop")
    )
    site.tell(make_run(84, "gpu_oom", "stop"))
    assert [job_id for job_id, _ in site.failures()] == [84, 81]


def test_infrastructure_failures_and_cancellations_do_not_count(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(*(make_submission(n) for n in (81, 82, 83)))
    site.tell(make_run(81, "storage_full", "stop", domain="IF"), make_run(82, "nccl_error", "retry", domain="AE"))
    site.tell(make_run(83, "cancelled", "none", domain="RS"))
    assert site.failures() == []


def test_another_users_job_and_an_older_job_with_the_same_id_do_not_count(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(make_submission(81))
    old = make_run(81, "gpu_oom", "stop")
    site.tell(replace(old, attempt=replace(old.attempt, submit_time=5)), make_run(81, "gpu_oom", "stop", uid=1002))
    assert site.failures() == []


def test_several_runs_of_one_job_count_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(make_submission(81))
    first = make_run(81, "semantic_error", "stop")
    again = replace(first, attempt=replace(first.attempt, submit_time=81_500), restarts=1, end_time=81_600)
    site.tell(first, again)
    assert site.failures() == [(81, "mend 81")]


def test_only_the_four_newest_diagnoses_are_opened(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(*(make_submission(n) for n in range(81, 99)))
    site.tell(*(make_run(n, "gpu_oom", "stop") for n in range(81, 99)))
    assert [job_id for job_id, _ in site.failures()] == [98, 97, 96, 95]
    assert site.opened == 4
