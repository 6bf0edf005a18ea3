"""The lines shown around the root cause: of a traceback, of other errors, and how many."""

from __future__ import annotations

from slurmwrap.diagnosis.cited_context import CAP
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import Citation, Evidence, LogTail


def find_root_citation(text: str) -> Citation:
    logs = (LogTail(name="out", text=text),)
    found = diagnose_run(Evidence(state="FAILED", exit_code=1, logs=logs)).evidence
    return next(citation for citation in found if citation.role == "root")


def test_a_deep_traceback_is_cut_to_the_users_own_frame() -> None:
    frames = "".join(
        f'  File "/opt/venv/lib/python3.11/site-packages/torch/nn/m{n}.py", line {n}, in forward\n    return f({n})\n'
        for n in range(12)
    )
    own = '  File "/home/ada/train.py", line 44, in step\n    loss = model(batch)\n'
    found = find_root_citation(
        f"Traceback (most recent call last):\n{own}{frames}RuntimeError: mat1 and mat2 shapes cannot be multiplied\n"
    )
    assert found.before == (*own.splitlines(), "...", "    return f(11)")
    assert found.after == ()


def test_a_short_traceback_is_shown_completely() -> None:
    text = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    import nosuch\n'
    found = find_root_citation(
        f"start\n{text}ModuleNotFoundError: No module named 'nosuch'\nsrun: error: n3: task 0: Exited\n"
    )
    assert found.before == tuple(text.splitlines())
    assert found.after == ("srun: error: n3: task 0: Exited",)


def test_lines_after_the_root_cause_stop_at_the_next_traceback() -> None:
    error = "OSError: [Errno 28] No space left on device"
    another = "During handling of the above exception, another\nTraceback (most recent call last):\n"
    found = find_root_citation(f"step 1\n{error}\n{error}\n{another}")
    assert (found.before, found.after) == (("step 1",), ())


def test_long_lines_are_cut_and_blank_lines_are_left_out() -> None:
    found = find_root_citation(
        "x" * 5000 + "\n\n\n" + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert found.before == ("x" * CAP,)


def test_a_citation_of_slurms_record_has_no_lines_around_it() -> None:
    found = diagnose_run(Evidence(state="NODE_FAIL", nodes=("n1",))).evidence
    assert [(one.source, one.before, one.after) for one in found] == [("slurm", (), ())]
