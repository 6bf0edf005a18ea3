"""The lines around the one that decided: what of a traceback, what of anything else, and how much."""

from __future__ import annotations

from slurmwrap.diagnosis.cited_context import CAP
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import Citation, Evidence, LogTail


def root(text: str) -> Citation:
    logs = (LogTail(name="out", text=text),)
    found = diagnose_run(Evidence(state="FAILED", exit_code=1, logs=logs)).evidence
    return next(citation for citation in found if citation.role == "root")


def test_of_a_deep_traceback_the_users_own_frame_is_shown() -> None:
    frames = "".join(
        f'  File "/opt/venv/lib/python3.11/site-packages/torch/nn/m{n}.py", line {n}, in forward\n    return f({n})\n'
        for n in range(12)
    )
    own = '  File "/home/ada/train.py", line 44, in step\n    loss = model(batch)\n'
    found = root(
        f"Traceback (most recent call last):\n{own}{frames}RuntimeError: mat1 and mat2 shapes cannot be multiplied\n"
    )
    assert found.before == (*own.splitlines(), "...", "    return f(11)")
    assert found.after == ()


def test_of_a_short_one_the_lines_before_it() -> None:
    text = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    import nosuch\n'
    found = root(f"start\n{text}ModuleNotFoundError: No module named 'nosuch'\nsrun: error: n3: task 0: Exited\n")
    assert found.before == tuple(text.splitlines())
    assert found.after == ("srun: error: n3: task 0: Exited",)


def test_what_follows_stops_at_the_next_traceback_and_repeats_nothing() -> None:
    error = "OSError: [Errno 28] No space left on device"
    another = "During handling of the above exception, another\nTraceback (most recent call last):\n"
    found = root(f"step 1\n{error}\n{error}\n{another}")
    assert (found.before, found.after) == (("step 1",), ())


def test_long_lines_are_cut_and_blank_ones_left_out() -> None:
    found = root(
        "x" * 5000 + "\n\n\n" + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert found.before == ("x" * CAP,)


def test_slurms_own_word_has_no_lines_around_it() -> None:
    found = diagnose_run(Evidence(state="NODE_FAIL", nodes=("n1",))).evidence
    assert [(one.source, one.before, one.after) for one in found] == [("slurm", (), ())]
