"""The root cause among several errors: ranks, files, times, consequences, survived errors."""

from __future__ import annotations

from pprint import pformat

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.log_rows import parse_rank
from slurmwrap.diagnosis.root_cause import Stamp, is_comparable, parse_stamp
from slurmwrap.model.evidence import Diagnosis, Evidence, LogTail

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
    return diagnose_run(Evidence(state="FAILED", exit_code=1, logs=logs))


def find_root(*texts: str) -> tuple[str, str]:
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
def test_all_timestamp_formats_give_the_same_time(row: str, seconds: float) -> None:
    noon = ((11 - 1) * 31 + 19) * 86400 + 12 * 3600
    assert parse_stamp(row) == Stamp(seconds=noon + seconds, utc=False)


@pytest.mark.parametrize(
    "row", ["step 1120 12:00", "E1399 12:00:00 x", "E1120 25:00:00.1 x", "May be", "", "took 12:00:01"]
)
def test_other_rows_have_no_timestamp(row: str) -> None:
    assert parse_stamp(row) is None


def test_timestamps_of_different_time_zones_are_not_compared() -> None:
    local_time, utc_time = parse_stamp("2026-11-20T12:00:01 x"), parse_stamp("2026-11-20T12:00:01Z x")
    assert (
        is_comparable([local_time, local_time]),
        is_comparable([local_time, utc_time]),
        is_comparable([local_time, None]),
    ) == (
        True,
        False,
        False,
    )


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
def test_the_prefix_of_a_launcher_names_the_rank(row: str, rank: int | None) -> None:
    assert parse_rank(row) == rank


TIMED_OUT = WATCHDOG.format("12:30:00.1")
OF_RANK_3 = "".join(f"[rank3]: {row}\n" for row in KEY_ERROR.splitlines())
RANK_0_GOES_ON = "".join(f"[rank0]: {row}\n" for row in LATER.splitlines())
FINALIZED = "Traceback (most recent call last):\n  {}\n    f()\nKeyError: '/x'\n"
ABORT = "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n"
FABRIC = "[n4:99 :0] ib_mlx5_log.c:171  UCX  ERROR Transport retry count exceeded on mlx5_0:1/IB\n"
COMPLAINT = "/home/ann/watch.sh: line 3: /sys/class/infiniband: Permission denied\n"


def bar(text: str) -> str:
    return "".join(text.format(number) for number in range(10, 50))


SITUATIONS = {
    # errors of peers after a rank was lost, and the error of the lost rank
    "an exception behind its peers' time-out": ("traceback_from_crash", TIMED_OUT + KEY_ERROR),
    "an exception behind its peers' lost connection": ("traceback_from_crash", PEER_GONE + KEY_ERROR),
    "end of file in the tear-down": ("nccl_error", TIMED_OUT + TRACEBACK + "EOFError\n"),
    "a reset in the tear-down": (
        "nccl_error",
        TIMED_OUT + TRACEBACK + "ConnectionResetError: [Errno 104] Connection reset by peer\n",
    ),
    "an interrupt in the tear-down": ("nccl_error", TIMED_OUT + TRACEBACK + "KeyboardInterrupt\n"),
    "other ranks go on for a while": ("traceback_from_crash", PROGRESS + OF_RANK_3 + RANK_0_GOES_ON),
    "the same rank goes on": ("no_signature", PROGRESS + OF_RANK_3 + RANK_0_GOES_ON.replace("[rank0]", "[rank3]")),
    "a fabric's error after a crash": ("traceback_from_crash", KEY_ERROR + FABRIC),
    "a fabric's error before a crash": ("mpi_runtime_failure", FABRIC + KEY_ERROR),
    "what was said before an abort": (
        "gpu_oom",
        "ERROR on GPU 3: failed to allocate 4096 MiB of device memory\n" + ABORT,
    ),
    "an abort alone": ("mpi_error", ABORT),
    # an error of a side script during training does not outrank a crash, but counts if it is the only error
    "a complaint, then a crash": ("traceback_from_crash", PROGRESS + COMPLAINT + KEY_ERROR),
    "a complaint alone": ("permission_error", PROGRESS + COMPLAINT),
    "a complaint before training": ("permission_error", COMPLAINT + KEY_ERROR),
    # tracebacks while the interpreter shuts down
    "ignored in a function": (
        "no_signature",
        PROGRESS + "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n" + KEY_ERROR,
    ),
    "ignored at exit": (
        "no_signature",
        PROGRESS + "Exception ignored in atexit callback: <function shutdown at 0x7f>\n" + KEY_ERROR,
    ),
    "error at exit": ("no_signature", PROGRESS + "Error in atexit._run_exitfuncs:\n" + KEY_ERROR),
    "logging error": ("no_signature", PROGRESS + "--- Logging error ---\n" + KEY_ERROR),
    "resource tracker": (
        "no_signature",
        PROGRESS
        + FINALIZED.format('File "/usr/lib/python3.11/multiprocessing/resource_tracker.py", line 239, in main'),
    ),
    "finalizers": (
        "no_signature",
        PROGRESS + FINALIZED.format('File "/usr/lib/python3.11/multiprocessing/util.py", line 300, in _run_finalizers'),
    ),
    "a destructor": ("no_signature", PROGRESS + FINALIZED.format('File "/opt/x/pool.py", line 268, in __del__')),
    # progress bars after an error: those of other work than training do not mean that the error was survived
    "a download": (
        "traceback_from_crash",
        KEY_ERROR + bar("Downloading data: {0}%|███ | {0}/100 [00:10<00:10, 3.1MB/s]\n"),
    ),
    "loading": (
        "traceback_from_crash",
        KEY_ERROR + bar("Loading checkpoint shards: {0}%|███ | {0}/100 [00:10<00:10]\n"),
    ),
    "tokenizing": (
        "traceback_from_crash",
        KEY_ERROR + bar("Tokenizing train (num_proc=8): {0}%|███ | {0}/100 [00:10<00:10, 900 examples/s]\n"),
    ),
    "validation": (
        "no_signature",
        PROGRESS + KEY_ERROR + bar("Validating: {0}%|███ | {0}/100 [00:10<00:10, 3.1it/s]\n"),
    ),
}


def test_the_root_cause_is_distinguished_from_consequences() -> None:
    found = {name: diagnose(text).category for name, (_, text) in SITUATIONS.items()}
    wrong = {name: given for name, given in found.items() if given != SITUATIONS[name][0]}
    assert not wrong, pformat(wrong)


def test_the_first_error_in_time_or_else_in_the_first_file_is_the_root_cause() -> None:
    late, early = (f"2026-11-20 12:0{minute}:00 start\n{KEY_ERROR}" for minute in (5, 1))
    assert find_root(late, early) == ("traceback_from_crash", "out.1")
    assert find_root(KEY_ERROR, KEY_ERROR) == ("traceback_from_crash", "out.0")


def test_an_exception_before_a_peers_timeout_is_the_cause_and_after_it_is_not() -> None:
    before, after = (f"[E1120 12:{time} train.cc:1] x\n{KEY_ERROR}" for time in ("00:01.0", "31:00.0"))
    assert find_root(TIMED_OUT, before) == ("traceback_from_crash", "out.1")
    assert find_root(TIMED_OUT, after) == ("nccl_error", "out.0")


@pytest.mark.parametrize("prefix", ["[rank3]: ", "3: ", "[1,3]<stderr>:", "[1,3]<stderr>: ", "worker-0 | ", "gpu12: "])
@pytest.mark.parametrize(
    ("text", "category"),
    [
        (TRACEBACK + "ModuleNotFoundError: No module named 'apex'\n", "import_error"),
        ("cp: cannot stat '/data/train.tar': No such file or directory\n", "incorrect_inputs"),
        ("bash: ./train.sh: Permission denied\n", "permission_error"),
    ],
)
def test_the_prefix_of_a_launcher_does_not_hide_an_error(prefix: str, text: str, category: str) -> None:
    assert find_root("".join(prefix + row for row in text.splitlines(keepends=True)))[0] == category


def test_an_elastic_restart_that_trains_on_makes_the_last_error_the_cause() -> None:
    restart = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\nstep 3/900 loss=2.9\n"
    index_error = TRACEBACK + "IndexError: list index out of range\n"
    found = diagnose(PROGRESS + KEY_ERROR + restart + index_error)
    assert (found.category, found.evidence[0].text) == ("traceback_from_crash", "IndexError: list index out of range")


def test_an_elastic_restart_that_fails_at_once_keeps_the_first_error() -> None:
    restart = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
    found = diagnose(PROGRESS + KEY_ERROR + restart + TRACEBACK + "IndexError: list index out of range\n")
    assert found.evidence[0].text == "KeyError: 'label'"


STAMPED = "2026-11-20 12:00:{:02d} step {}/900 loss=2.{}\n"


def diagnose_files(**texts: str) -> Diagnosis:
    logs = tuple(LogTail(name=f"job-7.{name}", text=text) for name, text in texts.items())
    return diagnose_run(Evidence(state="FAILED", exit_code=1, logs=logs))


def test_an_error_in_stderr_is_survived_by_later_progress_in_stdout() -> None:
    error = "2026-11-20 12:00:05 ERROR batch left out\n" + KEY_ERROR
    later = "".join(STAMPED.format(second, second, second) for second in range(1, 30))
    assert diagnose_files(out=later, err=error).category == "no_signature"


def test_an_error_in_stderr_is_not_survived_by_earlier_progress() -> None:
    error = "2026-11-20 12:00:45 ERROR batch left out\n" + KEY_ERROR
    earlier = "".join(STAMPED.format(second, second, second) for second in range(1, 30))
    assert diagnose_files(out=earlier, err=error).category == "traceback_from_crash"


def test_progress_of_another_rank_does_not_make_an_error_survived() -> None:
    error = "2026-11-20 12:00:05 ERROR batch left out\n" + KEY_ERROR
    later = "".join(STAMPED.format(second, second, second) for second in range(1, 30))
    assert diagnose_files(out0=later, err1=error).category == "traceback_from_crash"


def test_an_exit_by_signal_outranks_a_warning() -> None:
    hint = LogTail(name="out", text="2026-11-20 12:00:01 WARNING: cannot open shared object file: libfoo.so\n")
    assert diagnose_run(Evidence(state="FAILED", exit_code=139, logs=(hint,))).category == "invalid_memory_access"
