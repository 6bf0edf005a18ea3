"""slurmwrap doctor: a machine without Slurm, invalid settings, and checks that themselves fail or hang."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_page import PAGE, with_checks
from in_process import Runner
from smtp_server import Server
from waiting import allow, wait_for, wait_until
from webhook_server import WebServer

from slurmwrap.cli.doctor import database_checks, doctor_command, node_checks, site_checks
from slurmwrap.cli.doctor.check_records import (
    FAIL,
    OK,
    SITE,
    SKIP,
    UNKNOWN,
    WARN,
    YOU,
    CheckContext,
    CheckResult,
    CheckSpec,
    find_worst_state,
    fold_nodes,
)
from slurmwrap.cli.doctor.check_registry import CHECK_SPECS
from slurmwrap.cli.doctor.doctor_command import (
    EXIT,
    exit_code_from_checks,
    explain_check,
    format_checks,
    format_checks_as_json,
    format_nagios_line,
    run_all_checks,
)
from slurmwrap.cli.slurmwrap import app
from slurmwrap.config.load_config import Config, LogSection, Mail, SiteSection
from slurmwrap.errors import UsageError
from slurmwrap.host.journal import SOCKET
from slurmwrap.install.service_watchdog import MEMORY
from slurmwrap.model.observation import Context, Observation
from slurmwrap.report.job_report.job_report_text import plain
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.database import Database
from slurmwrap.store.migrations import VERSION


def run_doctor(home: Path, *words: str, **environ: str) -> tuple[int, str, str]:
    base = {"HOME": str(home), "PATH": "/nonexistent", "SLURMWRAP_CONFIG": str(home / "none.toml")}
    done = Runner().invoke(app, ["doctor", *words], env={**UNSET_VARIABLES, **base, **environ})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


# Variables that may be set where the tests run.
UNSET_VARIABLES = dict.fromkeys(
    ("SLURM_CONF", "SHELL", "TMPDIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")
)


def run_checks(home: Path, *only: str, **environ: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Return the exit code and the state and text of each check: all checks, or those named."""
    code, out, err = run_doctor(home, "--json", *(f"--only={name}" for name in only), **environ)
    assert err == ""
    reported = json.loads(out)
    assert EXIT[reported["state"]] == code
    return code, {one["name"]: (one["state"], one["text"]) for one in reported["checks"]}


def test_without_slurm_doctor_names_what_is_missing(tmp_path: Path) -> None:
    code, found = run_checks(tmp_path)
    assert code == 2
    assert found["commands"] == (FAIL, "not on PATH: sbatch, scontrol, squeue, scancel, sinfo")
    assert found["sbatch"] == (FAIL, "sbatch is not on PATH")
    assert found["controller"][0] == FAIL
    assert found["adapter"] == (SKIP, "Slurm does not answer")
    assert found["accounting"] == (SKIP, "Slurm does not answer")
    assert found["munge"][0] == FAIL
    assert found["configuration"] == (OK, "defaults: there is no file")
    assert found["spool"] == (SKIP, "site.spool is not configured: nothing arrives from nodes")
    assert found["site database"] == (SKIP, "site.state_dir is not configured")
    assert list(found) == [spec.name for spec in CHECK_SPECS]


def test_an_unreadable_slurm_conf_fails_with_its_path(tmp_path: Path) -> None:
    missing = tmp_path / "slurm.conf"
    code, found = run_checks(tmp_path, "slurm.conf", SLURM_CONF=str(missing), PATH=os.environ["PATH"])
    assert code == 2
    assert found["slurm.conf"] == (FAIL, f"SLURM_CONF={missing} cannot be read")


def test_a_damaged_database_and_a_missing_spool_fail(tmp_path: Path) -> None:
    state = tmp_path / ".local" / "state" / "slurmwrap"
    state.mkdir(parents=True)
    (state / "user.db").write_bytes(b"scrambled eggs" * 500)
    (tmp_path / "none.toml").write_text('[site]\nspool = "/nonexistent/spool"\n')
    _, found = run_checks(tmp_path, "database", "spool", "configuration")
    assert found["database"] == (FAIL, f"database {state}/user.db is damaged")
    assert found["spool"] == (FAIL, "/nonexistent/spool: No such file or directory")
    assert found["configuration"] == (OK, str(tmp_path / "none.toml"))


def test_the_database_check_stops_after_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ".local/state/slurmwrap/user.db"
    path.parent.mkdir(parents=True)
    Database.open(path).close()
    monkeypatch.setattr(database_checks, "CHECK_S", allow(5))
    _, found = run_checks(tmp_path, "database")
    size = path.stat().st_size / (1 << 20)
    assert found["database"] == (OK, f"{path}: whole, {size:.1f} MiB, schema {VERSION}")
    with Database.open(path) as database:
        database.connection.execute("CREATE TABLE ballast (id INTEGER PRIMARY KEY)")
        rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 800000)"
        database.connection.execute(f"INSERT INTO ballast {rows} SELECT i FROM n")
    monkeypatch.setattr(database_checks, "CHECK_S", 0.0)
    size = path.stat().st_size / (1 << 20)
    message = f"{path}: not checked to the end in 0 s: `slurmwrap db check` does, {size:.1f} MiB, schema {VERSION}"
    # On a busy machine the check may end before the thread that interrupts it runs.
    found = wait_for(lambda: run_checks(tmp_path, "database")[1], lambda seen: seen["database"] == (OK, message), 30)
    assert found["database"] == (OK, message)


def test_an_invalid_configuration_fails_and_no_other_check_runs(tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text('[slurm]\nadapter = "pyslrum"\n')
    code, found = run_checks(tmp_path)
    message = f"{tmp_path}/none.toml:2: slurm.adapter must be one of auto, commands, pyslurm, not 'pyslrum'"
    assert (code, found) == (2, {"configuration": (FAIL, message)})


def test_a_writable_configuration_and_an_unknown_variable_are_reported(tmp_path: Path) -> None:
    user = tmp_path / ".config/slurmwrap/config.toml"
    user.parent.mkdir(parents=True)
    user.write_text("")
    _, out, _ = run_doctor(tmp_path, "--json", "--only", "configuration", SLURMWRAP_PRERUN_STEP="1")
    (found,) = json.loads(out)["checks"]
    assert (found["state"], found["details"]) == (
        WARN,
        ["SLURMWRAP_PRERUN_STEP is no key's variable; did you mean SLURMWRAP_PRERUN_STEPS?"],
    )
    user.chmod(0o666)
    code, out, _ = run_doctor(tmp_path, "--json", "--only", "configuration")
    (found,) = json.loads(out)["checks"]
    assert f"{user}: " in found["text"] + "".join(found["details"])
    assert (code, found["state"]) == ((2, FAIL) if os.geteuid() == 0 else (1, WARN))


def test_the_text_has_one_line_per_check_and_the_fix_below_it(tmp_path: Path) -> None:
    code, out, err = run_doctor(tmp_path, "--only", "configuration", "--only", "commands", "--only", "spool-queue")
    assert (code, err) == (2, "")
    assert out.splitlines() == [
        "For you, on this host",
        "ok      configuration  defaults: there is no file",
        "fail    commands       not on PATH: sbatch, scontrol, squeue, scancel, sinfo",
        " " * 23 + "→ Install Slurm's client commands, or load the site's",
        " " * 23 + "  slurm module.",
        "",
        "The site",
        "skip    spool queue    site.spool is not configured",
        "",
        "1 ok, 1 fail, 1 skip.",
    ]


def test_quiet_prints_one_nagios_line_with_figures(tmp_path: Path) -> None:
    code, out, err = run_doctor(tmp_path, "--quiet", "--only", "commands", "--only", "configuration")
    assert (code, err) == (2, "")
    assert out == (
        "slurmwrap CRITICAL: commands: not on PATH: sbatch, scontrol, squeue, scancel, sinfo"
        " | ok=1 warn=0 fail=1 unknown=0 skip=0\n"
    )


def test_quiet_prints_unknown_when_every_check_was_skipped(tmp_path: Path) -> None:
    code, out, _ = run_doctor(tmp_path, "--quiet", "--only", "mail")
    assert (code, out) == (3, "slurmwrap UNKNOWN: 1 skip | ok=0 warn=0 fail=0 unknown=0 skip=1\n")


def test_an_unknown_check_is_refused_with_the_list_of_checks(tmp_path: Path) -> None:
    done = Runner().invoke(app, ["doctor", "--only", "spol"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == "there is no check 'spol'"
    assert done.exception.hint == f"the checks are: {', '.join(look.name for look in CHECK_SPECS)}"


def test_explain_prints_what_a_check_does_and_how_to_fix_it(tmp_path: Path) -> None:
    code, out, err = run_doctor(tmp_path, "--explain", "mail")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "mail (the site; within 15 s)",
        "  looks at  Whether mail.server answers EHLO and NOOP. No mail is sent.",
        "  to fix    See `slurmwrap config show mail`.",
    ]


def test_every_check_has_a_unique_name_a_description_and_a_fix() -> None:
    assert len({spec.name for spec in CHECK_SPECS}) == len(CHECK_SPECS)
    assert [spec.name for spec in CHECK_SPECS if not (spec.about.endswith(".") and spec.fix.endswith("."))] == []
    assert [spec.name for spec in CHECK_SPECS if max(map(len, explain_check(spec).splitlines())) > 80] == []


def test_the_documentation_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_checks(text) == text, ".venv/bin/python .ci/doctor_page.py writes it anew"


def make_context(**sections: object) -> CheckContext:
    config = Config(**sections)  # type: ignore[arg-type]
    return CheckContext(config=config, environ={}, uid=os.geteuid(), commands=SlurmCommands({"PATH": "/nonexistent"}))


def make_check_spec(name: str, see: Callable[[CheckContext], CheckResult], deadline_s: float = allow(30)) -> CheckSpec:
    return CheckSpec(name=name, section=YOU, see=see, about="It looks.", fix="Fix it.", deadline_s=deadline_s)


def good(context: CheckContext) -> CheckResult:
    return CheckResult(name="good", state=OK, text="fine", details=("a",), figures={"x": 1.5})


def test_a_check_that_fails_hangs_or_dies_does_not_stop_the_others() -> None:
    def bad(context: CheckContext) -> CheckResult:
        raise RuntimeError("no")

    def dies(context: CheckContext) -> CheckResult:
        os._exit(9)

    def hangs(context: CheckContext) -> CheckResult:
        subprocess.run(["/bin/sleep", "600"], check=False)
        return good(context)

    specs = [
        make_check_spec("bad", bad),
        make_check_spec("hangs", hangs, 0.5),
        make_check_spec("dies", dies),
        make_check_spec("good", good),
    ]
    reported: set[str] = set()
    assert run_all_checks(make_context(), specs, reported.update) == (
        CheckResult(name="bad", state=UNKNOWN, text="the check itself failed: RuntimeError: no"),
        CheckResult(
            name="hangs", state=FAIL, text="no answer within 0.5 s", hint="Something it waits for hangs. It looks."
        ),
        CheckResult(name="dies", state=UNKNOWN, text="the check ended without a result"),
        CheckResult(name="good", state=OK, text="fine", details=("a",), figures={"x": 1.5}),
    )
    assert reported == {"bad", "hangs", "dies", "good"}


def test_child_processes_of_a_check_that_hangs_are_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def hangs(context: CheckContext) -> CheckResult:
        subprocess.run(["/bin/sh", "-c", f"echo $$ > {note}; exec sleep 600"], check=False)
        return good(context)

    run_all_checks(make_context(), [make_check_spec("hangs", hangs, allow(0.5))])
    pid = int(note.read_text())
    wait_until(lambda: not is_alive(pid), "the check's child has ended")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("states", "wanted", "code"),
    [
        ((), OK, 3),
        ((SKIP,), OK, 3),
        ((OK, SKIP), OK, 0),
        ((OK, SKIP, WARN), WARN, 1),
        ((FAIL, WARN, OK), FAIL, 2),
        ((OK, UNKNOWN), UNKNOWN, 3),
        ((UNKNOWN, WARN), WARN, 1),
    ],
)
def test_the_worst_state_determines_the_exit_code_and_skip_is_ignored(
    states: tuple[str, ...], wanted: str, code: int
) -> None:
    found = [CheckResult(name="x", state=state, text="") for state in states]
    assert (find_worst_state(found), exit_code_from_checks(found)) == (wanted, code)


def test_control_characters_in_results_are_escaped() -> None:
    reported = format_checks(
        [CheckResult(name="x", state=OK, text="cluster '\033[2Jlab'")], [make_check_spec("x", good)], plain
    )
    assert reported == "For you, on this host\nok      x  cluster '\\x1b[2Jlab'\n\n1 ok."
    assert format_nagios_line([CheckResult(name="x", state=FAIL, text="a|b\n\033")]).startswith(
        "slurmwrap CRITICAL: x: a/b \\x1b | ok=0 "
    )


def test_nodes_with_the_same_text_are_folded_into_one_line() -> None:
    rows = [(f"n{number:02}", "hung" if number % 2 else "well") for number in range(1, 5)] + [("n05", "hung")]
    assert fold_nodes(rows) == ("n[01,03,05]: hung", "n[02,04]: well")


def test_checks_skipped_for_one_reason_share_a_row_and_details_are_limited() -> None:
    skipped = [CheckResult(name=name, state=SKIP, text="no site") for name in ("a", "b")]
    many = CheckResult(name="c", state=WARN, text="odd", details=tuple(map(str, range(14))))
    specs = [replace(make_check_spec(name, good), section=SITE) for name in ("a", "b", "c")]
    lines = format_checks([*skipped, many], specs, plain).splitlines()
    below = " " * 18
    assert lines[:4] == ["The site", "skip    2 checks  no site", f"{below}- a, b", "warn    c         odd"]
    assert lines[4:17] == [f"{below}- {number}" for number in range(12)] + [f"{below}- and 2 more: --json has all"]


def test_a_missing_site_database_is_skipped_as_not_on_this_host(tmp_path: Path) -> None:
    for state_dir in (tmp_path / "missing", tmp_path):
        context = make_context(site=SiteSection(state_dir=str(state_dir)))
        for check in (
            node_checks.check_hooks_on_nodes(context),
            node_checks.check_node_clocks(context),
            node_checks.check_node_drivers(context),
            node_checks.check_rejected_records(context),
        ):
            message = f"there is no {state_dir}/site.db here: it is the controller's"
            assert (check.state, check.text.partition(",")[0]) == (SKIP, message)
    missing = make_context(site=SiteSection(state_dir=str(tmp_path / "missing")))
    assert database_checks.check_site_database(missing).text.startswith(f"there is no {tmp_path}/missing here")
    assert site_checks.check_night_report(missing).text.startswith(f"there is no {tmp_path}/missing here")


def test_jobs_that_ended_under_a_backup_controller_are_counted(tmp_path: Path) -> None:
    now = time.time()
    with Database.open(tmp_path / "site.db") as store:
        for number, (job, context) in enumerate([(1, "epilog"), (1, "epilog_slurmctld"), (2, "epilog"), (2, "epilog")]):
            store.ingest(
                Observation(nonce=f"{number:032}", cluster="lab", job_id=job, context=Context(context), at=now - 100.0)
            )
        values = {"since": 0.0, "until": now, "jobs": 20_000}
        plan = [row["detail"] for row in store._rows(f"EXPLAIN QUERY PLAN {node_checks._WITHOUT_CONTROLLER}", values)]
    assert [line for line in plan if " c " in line] == [
        "SEARCH c USING INDEX observations_by_job (cluster=? AND job_id=?)"
    ]
    context = make_context(site=SiteSection(state_dir=str(tmp_path)))
    found = []
    for hosts in ("ctl0(10.0.0.1)", "ctl0(10.0.0.1),ctl1"):
        vars(context)["slurm"] = {"SlurmctldHost": hosts}
        check = node_checks.check_controllers(context)
        found.append((check.state, check.text))
    text = "ctl0, ctl1: 1 of 2 jobs have no record of EpilogSlurmctld"
    assert found == [(SKIP, "there is no backup controller"), (WARN, text)]


def test_the_delay_query_searches_attempts_by_the_primary_key(tmp_path: Path) -> None:
    """With a range scan the check takes minutes on a large site and is ended as a check that hangs."""
    with Database.open(tmp_path / "site.db") as store:
        values = {"since": 0.0, "jobs": 20_000, "near": 600.0}
        plan = [row["detail"] for row in store._rows(f"EXPLAIN QUERY PLAN {node_checks._DELAYS}", values)]
    assert [line for line in plan if "SEARCH a " in line] == ["SEARCH a USING PRIMARY KEY (cluster=? AND job_id=?)"]


def test_a_record_that_disappears_during_the_check_is_ignored(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.obs").touch()
    ages = site_checks._list_ages(str(tmp_path), time.time() + 60)
    next(ages)
    for path in tmp_path.iterdir():
        path.unlink()
    assert list(ages) == []


def test_json_has_state_unknown_when_every_check_was_skipped() -> None:
    skipped = CheckResult(name="x", state=SKIP, text="not here")
    assert json.loads(format_checks_as_json([skipped], []))["state"] == UNKNOWN


def test_a_mail_server_is_contacted_without_sending_a_mail() -> None:
    server = Server()
    try:
        found = site_checks.check_mail(make_context(mail=Mail(server=server.address)))
        assert found == CheckResult(name="mail", state=OK, text=f"{server.address} answers: 250 ok")
        assert server.messages() == []
    finally:
        server.close()


def test_a_mail_server_that_does_not_listen_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    assert site_checks.check_mail(make_context(mail=Mail(server=address))).state == FAIL


@pytest.mark.skipif(os.geteuid() != 0, reason="a spool is root's or SlurmUser's")
@pytest.mark.parametrize(
    ("mode", "owner", "message"),
    [
        (0o1733, 0, "a signed record was written, read and removed"),
        (0o0733, 0, "mode 0733, not 1733: without the sticky bit every user could remove the records of others"),
        (0o1755, 0, "mode 1755, not 1733: nodes and users cannot write"),
        (0o1777, 0, "mode 1777, not 1733: every user can list the records of others"),
        (0o1733, 65534, "it belongs to nobody, who could remove everything in it"),
    ],
)
def test_mode_and_owner_of_the_spool_are_checked_and_the_spool_stays_empty(
    tmp_path: Path, munge_socket: str, mode: int, owner: int, message: str
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    os.chown(spool, owner, owner)
    spool.chmod(mode)
    found = site_checks.check_spool(make_context(site=SiteSection(spool=str(spool), munge_socket=munge_socket)))
    assert (found.state, found.text) == (OK if "written" in message else FAIL, f"{spool}: {message}")
    assert list(spool.iterdir()) == []


def test_records_that_wait_for_more_than_10_minutes_are_reported(tmp_path: Path) -> None:
    for number, age in enumerate((0, 700, 7300)):
        path = tmp_path / f"{number}-n1-{'0' * 32}.obs"
        path.touch()
        os.utime(path, (time.time() - age, time.time() - age))
    found = site_checks.check_waiting_records(make_context(site=SiteSection(spool=str(tmp_path))))
    assert (found.state, found.text) == (WARN, "2 records wait for more than 10 minutes, the oldest for 2 hours")
    assert found.figures["spool_waiting"] == 3


def test_a_kept_answers_directory_that_others_may_write_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / f"slurmwrap-{os.geteuid()}"
    assert run_checks(tmp_path, "kept-answers", TMPDIR=str(tmp_path))[1]["kept answers"][0] == OK
    folder.mkdir(mode=0o700)
    assert run_checks(tmp_path, "kept-answers", TMPDIR=str(tmp_path))[1]["kept answers"] == (OK, str(folder))
    folder.chmod(0o777)
    assert run_checks(tmp_path, "kept-answers", TMPDIR=str(tmp_path))[1]["kept answers"] == (
        WARN,
        f"{folder} is not this user's alone",
    )


def test_an_installed_completion_script_is_found(tmp_path: Path) -> None:
    bash = {"SHELL": "/bin/bash"}
    assert run_checks(tmp_path, "completion", **bash)[1]["completion"] == (OK, "bash: not installed")
    Runner().invoke(
        app, ["completion", "bash", "--install"], env={**UNSET_VARIABLES, "HOME": str(tmp_path), "XDG_DATA_HOME": None}
    )
    found = run_checks(tmp_path, "completion", **bash)[1]["completion"]
    assert found == (OK, f"bash: {tmp_path}/.local/share/bash-completion/completions/gsub")


def test_a_configuration_file_that_blocks_on_open_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a FIFO without a writer blocks, as does a file on a file server that does not answer."""
    os.mkfifo(tmp_path / "none.toml")
    monkeypatch.setattr(doctor_command, "DEADLINE_S", 1.0)
    assert run_checks(tmp_path) == (2, {"configuration": (FAIL, "no answer within 1 s")})


@pytest.mark.parametrize(
    ("to", "wanted"), [("stderr", (OK, "to stderr")), ("journal", (WARN, "log.to is journal, and no"))]
)
def test_a_missing_journal_is_reported(to: str, wanted: tuple[str, str]) -> None:
    if to == "journal" and Path(SOCKET).exists():
        pytest.skip("a journald listens on this machine")
    found = site_checks.check_log(make_context(log=LogSection(to=to)))
    assert (found.state, found.text[: len(wanted[1])]) == wanted


@pytest.mark.parametrize(
    ("rules", "age_s", "told"),
    [
        ({"order": "act"}, None, "order: the watchdog, which undoes what they changed if the reconciler stops, never"),
        ({"order": "act", "limit": "act"}, 7200, "order and limit: the watchdog, which undoes what they changed if"),
        ({"limit": "act"}, 60, None),
        ({"limit": "advise", "order": "observe"}, None, None),
    ],
)
def test_rules_that_are_undone_by_the_watchdog_need_it(
    tmp_path: Path, rules: dict[str, str], age_s: float | None, told: str | None
) -> None:
    context = make_context(site=SiteSection(state_dir=str(tmp_path)), rules=rules)
    context.__dict__["slurm"] = {}
    if age_s is not None:
        (tmp_path / MEMORY).write_text("{}")
        os.utime(tmp_path / MEMORY, (context.now - age_s, context.now - age_s))
    found = site_checks.check_rules(context)
    assert [text[: len(told or "")] for text in found.details] == ([told] if told else [])
    assert found.state == (WARN if told else OK)


@pytest.mark.parametrize(
    ("configured", "slurm_user", "wrong"),
    [
        ("", "slurm(64030)", False),
        ("root", "slurm(64030)", False),
        ("slurm", "slurm(64030)", False),
        ("slurm", "", False),
        ("ada", "slurm(64030)", True),
    ],
)
def test_a_slurm_user_that_slurm_does_not_know_keeps_rules_from_acting(
    configured: str, slurm_user: str, wrong: bool
) -> None:
    context = make_context(site=SiteSection(slurm_user=configured))
    context.__dict__["slurm"] = {"SlurmUser": slurm_user}
    found = site_checks.check_rules(context)
    refusal = f"site.slurm_user is {configured}, and Slurm's SlurmUser is slurm: Slurm refuses requests of {configured}"
    assert (refusal in found.details) is wrong
    assert found.state == (WARN if wrong else OK)


def test_a_webhook_is_contacted_and_gets_a_message_only_if_asked(tmp_path: Path) -> None:
    server = WebServer()
    try:
        variables = {"SLURMWRAP_NOTIFY_URL": server.url("/hooks/qwertzuiop")}
        code, checks = run_checks(tmp_path, "notify", **variables)
        assert (code, checks) == (0, {"notify": ("ok", f"127.0.0.1 {ANSWERS} (format json)")})
        assert server.posted == []
        code, out, _ = run_doctor(tmp_path, "--test-notify", **variables)
        assert code == 0 and "accepted a test message" in out and server.posted[0][1]["event"] == "test"
        file = tmp_path / "config.toml"
        file.write_text(f'[notify]\nurl = "{server.url()}"\n')
        file.chmod(0o644)
        assert run_checks(tmp_path, "notify", SLURMWRAP_CONFIG=str(file))[1]["notify"] == (
            "warn",
            f"other users can read the address in {file}",
        )
        file.chmod(0o600)
        assert run_checks(tmp_path, "notify", SLURMWRAP_CONFIG=str(file))[0] == 0
        server.answer = (404, {}, b"no such hook: qwertzuiop")
        code, out, err = run_doctor(tmp_path, "--test-notify", "--quiet", **variables)
        assert code == 2 and "404 Not Found: no such hook: …" in out and "qwertz" not in out + err
    finally:
        server.close()


ANSWERS = "answers; `--test-notify` sends a message"


def test_an_unusable_webhook_fails_without_showing_its_address(tmp_path: Path) -> None:
    code, out, err = run_doctor(tmp_path, "--only", "notify", SLURMWRAP_NOTIFY_URL="http://example.org/qwertzuiop")
    assert code == 2 and "readable for others" in out and "qwertz" not in out + err
    assert run_doctor(tmp_path, "--test-notify")[0] == 3
