"""The site's word on earlier submissions reaches gsub's refusal."""

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


def submission(job_id: int, fingerprint: str = "f1") -> Submission:
    return Submission(
        cluster="lab",
        job_id=job_id,
        uid=UID,
        user="ada",
        at=float(job_id * 1000),
        script_sha256="aa",
        fingerprint=fingerprint,
    )


def ended(job_id: int, category: str, decision: str, *, domain: str = "U", uid: int = UID) -> JobRun:
    diagnosis = Diagnosis(
        category=category, domain=domain, decision=decision, confidence=1, signature="s", advice=f"mend {job_id}"
    )
    key = RunKey(cluster="lab", job_id=job_id, submit_time=job_id * 1000)
    return JobRun(attempt=key, uid=uid, state="FAILED", end_time=job_id * 1000 + 60, diagnosis=diagnosis)


class Site:
    """Seals without MUNGE: what matters here is who is told what, and what comes of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "published"
        self.directory.mkdir(mode=0o755)
        self.state = UserState(tmp_path / "state")
        self.state.spool.mkdir(parents=True)
        self.opened = 0
        self.publisher = FilePublisher(self.directory, "", lambda payload, *, socket, uid_restriction=None: payload)

    def submit(self, *submissions: Submission) -> None:
        """As gsub leaves them where no reconcile ever takes them in."""
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
        told = read_published_ends(same, self.directory, unseal, {0})
        found = self.state.failed_before("aa", fingerprint=fingerprint, diagnosed=told)
        return [(failure.job_id, failure.reason) for failure in found]


def test_failures_that_the_site_judged_count_newest_first(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(submission(81), submission(82))
    site.tell(ended(81, "gpu_oom", "stop"), ended(82, "semantic_error", "stop"))
    assert site.failures() == [(82, "mend 82"), (81, "mend 81")]


def test_a_success_in_between_resets(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(*(submission(n) for n in (81, 82, 83)))
    site.tell(ended(81, "gpu_oom", "stop"), ended(82, "success", "none", domain=""), ended(83, "gpu_oom", "stop"))
    assert site.failures() == [(83, "mend 83")]


def test_other_arguments_neither_count_nor_reset(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(submission(81), submission(82, "f2"), submission(83, "f2"), submission(84))
    site.tell(ended(81, "gpu_oom", "stop"), ended(82, "success", "none", domain=""), ended(83, "gpu_oom", "stop"))
    site.tell(ended(84, "gpu_oom", "stop"))
    assert [job_id for job_id, _ in site.failures()] == [84, 81]


def test_what_the_machine_did_is_no_failure_of_the_script(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(*(submission(n) for n in (81, 82, 83)))
    site.tell(ended(81, "storage_full", "stop", domain="IF"), ended(82, "nccl_error", "retry", domain="AE"))
    site.tell(ended(83, "cancelled", "none", domain="RS"))
    assert site.failures() == []


def test_an_older_job_of_the_same_id_and_another_users_are_not_taken_for_this_one(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(submission(81))
    old = ended(81, "gpu_oom", "stop")
    site.tell(replace(old, attempt=replace(old.attempt, submit_time=5)), ended(81, "gpu_oom", "stop", uid=1002))
    assert site.failures() == []


def test_runs_of_one_job_count_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(submission(81))
    first = ended(81, "semantic_error", "stop")
    again = replace(first, attempt=replace(first.attempt, submit_time=81_500), restarts=1, end_time=81_600)
    site.tell(first, again)
    assert site.failures() == [(81, "mend 81")]


def test_only_a_few_of_the_newest_are_opened(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(*(submission(n) for n in range(81, 99)))
    site.tell(*(ended(n, "gpu_oom", "stop") for n in range(81, 99)))
    assert [job_id for job_id, _ in site.failures()] == [98, 97, 96, 95]
    assert site.opened == 4
