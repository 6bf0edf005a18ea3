"""The root among several failures: ranks, files, times, consequences, survived errors."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.classify import classify
from slurmwrap.diagnosis.clock import Stamp, comparable, stamp_of
from slurmwrap.diagnosis.evidence import Diagnosis, Evidence, LogTail
from slurmwrap.diagnosis.lines import rank_of

PROGRESS = "".join(f"step {number}/900 loss={3 - number / 1000:.3f}\n" for number in range(1, 6))
LATER = "".join(f"step {number}/900 loss={3 - number / 1000:.3f}\n" for number in range(6, 12))
TRACEBACK = 'Traceback (most recent call last):\n  File "/home/ann/train.py", line 7, in <module>\n    main()\n'
KEY_ERROR = TRACEBACK + "KeyError: 'label'\n"
WATCHDOG = "[rank1]:[E1120 {} ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: Work\n"
PEER_GONE = (
    TRACEBACK + "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
)


def diagnose(*texts: str) -> Diagnosis:
    logs = tuple(LogTail(name=f"out.{index}", text=text) for index, text in enumerate(texts))
    return classify(Evidence(state="FAILED", exit_code=1, logs=logs))


def root_of(*texts: str) -> tuple[str, str]:
    found = diagnose(*texts)
    return found.category, found.evidence[0].source


@pytest.mark.parametrize(
    ("row", "seconds"),
    [
        ("2026-11-20T12:00:01.5 x", 1.5),
        ("2026-11-20 12:00:01,500 - root - ERROR - x", 1.5),
        ("[2026-11-20 12:00:01] x", 1),
        ("[rank0]:[E1120 12:00:01.123456789 ProcessGroupNCCL.cpp:1] x", 1.123456789),
        ("E1120 12:00:01.123 7 file.cc:3] x", 1.123),
        ("Nov 20 12:00:01 n3 kernel: x", 1),
    ],
)
def test_the_forms_of_time_agree(row: str, seconds: float) -> None:
    noon = ((11 - 1) * 31 + 19) * 86400 + 12 * 3600
    assert stamp_of(row) == Stamp(seconds=noon + seconds, utc=False)


@pytest.mark.parametrize(
    "row", ["step 1120 12:00", "E1399 12:00:00 x", "E1120 25:00:00.1 x", "May be", "", "took 12:00:01"]
)
def test_other_rows_carry_no_time(row: str) -> None:
    assert stamp_of(row) is None


def test_times_of_different_zones_are_not_compared() -> None:
    here, there = stamp_of("2026-11-20T12:00:01 x"), stamp_of("2026-11-20T12:00:01Z x")
    assert (comparable([here, here]), comparable([here, there]), comparable([here, None])) == (True, False, False)


@pytest.mark.parametrize(
    ("row", "rank"),
    [
        ("[rank3]: x", 3),
        ("3: x", 3),
        ("[1,3]<stderr>:x", 3),
        ("[prterun-n1-77@1,3]<stderr>: x", 3),
        ("[default3]:x", 3),
        ("step 3: x", None),
        ("n3: x", None),
    ],
)
def test_a_launchers_prefix_names_the_rank(row: str, rank: int | None) -> None:
    assert rank_of(row) == rank


def test_files_of_ranks_are_ordered_by_time() -> None:
    late, early = (f"2026-11-20 12:0{minute}:00 start\n{KEY_ERROR}" for minute in (5, 1))
    assert root_of(late, early) == ("traceback_from_crash", "out.1")


def test_without_times_the_order_of_the_files_stands() -> None:
    assert root_of(KEY_ERROR, KEY_ERROR) == ("traceback_from_crash", "out.0")


def test_a_ranks_own_exception_before_its_peers_time_out_is_the_cause_whatever_the_order_of_files() -> None:
    own = f"[E1120 12:00:01.0 train.cc:1] x\n{KEY_ERROR}"
    assert root_of(WATCHDOG.format("12:30:00.1"), own) == ("traceback_from_crash", "out.1")


def test_an_exception_that_comes_after_the_time_out_by_time_is_its_consequence() -> None:
    own = f"[E1120 12:31:00.0 train.cc:1] x\n{KEY_ERROR}"
    assert root_of(WATCHDOG.format("12:30:00.1"), own) == ("nccl_error", "out.0")


@pytest.mark.parametrize("peers", [WATCHDOG.format("12:30:00.1"), PEER_GONE])
def test_what_peers_print_of_a_lost_rank_waits_behind_that_ranks_exception(peers: str) -> None:
    assert root_of(peers + KEY_ERROR) == ("traceback_from_crash", "out.0")


@pytest.mark.parametrize(
    "end", ["EOFError", "ConnectionResetError: [Errno 104] Connection reset by peer", "KeyboardInterrupt"]
)
def test_exceptions_of_the_teardown_do_not_explain_a_time_out(end: str) -> None:
    assert root_of(WATCHDOG.format("12:30:00.1") + TRACEBACK + end + "\n") == ("nccl_error", "out.0")


@pytest.mark.parametrize("prefix", ["[rank3]: ", "3: ", "[1,3]<stderr>:", "[1,3]<stderr>: ", "worker-0 | ", "gpu12: "])
@pytest.mark.parametrize(
    ("text", "category"),
    [
        (TRACEBACK + "ModuleNotFoundError: No module named 'apex'\n", "import_error"),
        ("cp: cannot stat '/data/train.tar': No such file or directory\n", "incorrect_inputs"),
        ("bash: ./train.sh: Permission denied\n", "permission_error"),
    ],
)
def test_a_launchers_prefix_hides_nothing(prefix: str, text: str, category: str) -> None:
    assert root_of("".join(prefix + row for row in text.splitlines(keepends=True)))[0] == category


@pytest.mark.parametrize(
    "before",
    [
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n",
        "Exception ignored in atexit callback: <function shutdown at 0x7f>\n",
        "Error in atexit._run_exitfuncs:\n",
        "--- Logging error ---\n",
    ],
)
def test_tracebacks_of_an_ending_interpreter_are_no_cause(before: str) -> None:
    assert root_of(PROGRESS + before + KEY_ERROR)[0] == "no_signature"


@pytest.mark.parametrize(
    "frame",
    [
        '  File "/usr/lib/python3.11/multiprocessing/resource_tracker.py", line 239, in main\n',
        '  File "/usr/lib/python3.11/multiprocessing/util.py", line 300, in _run_finalizers\n',
        '  File "/opt/x/pool.py", line 268, in __del__\n',
    ],
)
def test_tracebacks_that_begin_in_a_finalizer_are_no_cause(frame: str) -> None:
    assert (
        root_of(PROGRESS + f"Traceback (most recent call last):\n{frame}    f()\nKeyError: '/x'\n")[0] == "no_signature"
    )


def test_an_attempt_that_elastic_restarts_and_that_trains_on_is_survived_and_the_last_one_is_the_cause() -> None:
    restart = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\nstep 3/900 loss=2.9\n"
    index_error = TRACEBACK + "IndexError: list index out of range\n"
    found = diagnose(PROGRESS + KEY_ERROR + restart + index_error)
    assert (found.category, found.evidence[0].text) == ("traceback_from_crash", "IndexError: list index out of range")


def test_an_attempt_that_is_restarted_and_fails_at_once_is_not_survived() -> None:
    restart = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
    found = diagnose(PROGRESS + KEY_ERROR + restart + TRACEBACK + "IndexError: list index out of range\n")
    assert found.evidence[0].text == "KeyError: 'label'"


@pytest.mark.parametrize(
    "bar",
    [
        "Downloading data: {0}%|███ | {0}/100 [00:10<00:10, 3.1MB/s]\n",
        "Loading checkpoint shards: {0}%|███ | {0}/100 [00:10<00:10]\n",
        "Tokenizing train (num_proc=8): {0}%|███ | {0}/100 [00:10<00:10, 900 examples/s]\n",
    ],
)
def test_bars_of_what_runs_beside_training_do_not_mean_that_an_error_was_survived(bar: str) -> None:
    assert root_of(KEY_ERROR + "".join(bar.format(number) for number in range(10, 50)))[0] == "traceback_from_crash"


def test_validation_after_an_error_means_that_it_was_survived() -> None:
    bar = "".join(f"Validating: {number}%|███ | {number}/100 [00:10<00:10, 3.1it/s]\n" for number in range(10, 50))
    assert root_of(PROGRESS + KEY_ERROR + bar)[0] == "no_signature"


def test_other_ranks_that_go_on_for_a_while_do_not_excuse_the_one_that_died() -> None:
    error = "".join(f"[rank3]: {row}\n" for row in KEY_ERROR.splitlines())
    others = "".join(f"[rank0]: {row}\n" for row in LATER.splitlines())
    assert root_of(PROGRESS + error + others)[0] == "traceback_from_crash"
    assert root_of(PROGRESS + error + others.replace("[rank0]", "[rank3]"))[0] == "no_signature"


STAMPED = "2026-11-20 12:00:{:02d} step {}/900 loss=2.{}\n"


def files(**texts: str) -> Diagnosis:
    logs = tuple(LogTail(name=f"job-7.{name}", text=text) for name, text in texts.items())
    return classify(Evidence(state="FAILED", exit_code=1, logs=logs))


def test_an_error_of_stderr_is_survived_by_later_progress_in_stdout() -> None:
    error = "2026-11-20 12:00:05 ERROR batch left out\n" + KEY_ERROR
    later = "".join(STAMPED.format(second, second, second) for second in range(1, 30))
    assert files(out=later, err=error).category == "no_signature"


def test_an_error_of_stderr_is_not_survived_by_earlier_progress_in_stdout() -> None:
    error = "2026-11-20 12:00:45 ERROR batch left out\n" + KEY_ERROR
    earlier = "".join(STAMPED.format(second, second, second) for second in range(1, 30))
    assert files(out=earlier, err=error).category == "traceback_from_crash"


def test_another_ranks_progress_survives_nothing() -> None:
    error = "2026-11-20 12:00:05 ERROR batch left out\n" + KEY_ERROR
    later = "".join(STAMPED.format(second, second, second) for second in range(1, 30))
    assert files(out0=later, err1=error).category == "traceback_from_crash"


def test_a_side_scripts_complaint_during_training_hides_no_cause_but_stands_alone() -> None:
    complaint = "/home/ann/watch.sh: line 3: /sys/class/infiniband: Permission denied\n"
    assert diagnose(PROGRESS + complaint + KEY_ERROR).category == "traceback_from_crash"
    assert diagnose(PROGRESS + complaint).category == "permission_error"
    assert diagnose(complaint + KEY_ERROR).category == "permission_error"


def test_what_was_said_before_an_abort_is_its_cause() -> None:
    abort = "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n"
    said = "ERROR on GPU 3: failed to allocate 4096 MiB of device memory\n"
    assert (diagnose(said + abort).category, diagnose(abort).category) == ("gpu_oom", "mpi_error")


def test_a_fabrics_error_after_a_crash_is_a_peers() -> None:
    fabric = "[n4:99 :0] ib_mlx5_log.c:171  UCX  ERROR Transport retry count exceeded on mlx5_0:1/IB\n"
    assert diagnose(KEY_ERROR + fabric).category == "traceback_from_crash"
    assert diagnose(fabric + KEY_ERROR).category == "mpi_runtime_failure"


def test_an_exit_by_signal_says_more_than_a_hint() -> None:
    hint = LogTail(name="out", text="2026-11-20 12:00:01 WARNING: cannot open shared object file: libfoo.so\n")
    assert classify(Evidence(state="FAILED", exit_code=139, logs=(hint,))).category == "invalid_memory_access"
