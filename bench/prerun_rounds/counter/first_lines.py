"""Record when a program first executes each line of its own files: the number of steps made before, and the callers.

sitecustomize.py calls start() if PRERUN_ROUNDS_LINES names a folder. Own files are those below PRERUN_ROUNDS_ROOT.
Each process writes <folder>/<pid> at its end: {"lines": {file: {line: {"order", "counts", "stack"}}}, "counts"}.
`stack` names the own functions from the innermost to the outermost with the line that runs in each. Processes that end
with os._exit(), such as DataLoader's workers, write nothing. Nothing here may end the program.
"""

# mypy: ignore-errors

import atexit
import json
import os
import sys
import threading

_LONGEST_STACK = 12


def start(counts, folder, root):
    """Begin to record. `counts`: steps by source, which change while the program runs."""
    root = os.path.realpath(root) + os.sep
    first = {}
    own = {}

    def find_own(name):
        if name not in own:
            path = os.path.realpath(name) if name and not name.startswith("<") else ""
            own[name] = path[len(root) :] if path.startswith(root) else None
        return own[name]

    def read_stack(frame):
        found = []
        while frame is not None and len(found) < _LONGEST_STACK:
            file = find_own(frame.f_code.co_filename)
            if file is not None:
                found.append([file, frame.f_code.co_name, frame.f_lineno])
            frame = frame.f_back
        return found

    def record(file, line, frame):
        if (file, line) not in first:
            first[file, line] = {"order": len(first), "counts": dict(counts), "stack": read_stack(frame)}

    def write():
        lines = {}
        for (file, line), found in list(first.items()):
            lines.setdefault(file, {})[line] = found
        with open(os.path.join(folder, str(os.getpid())), "w") as out:  # noqa: PTH118, PTH123 - quick to import
            json.dump({"lines": lines, "counts": dict(counts)}, out)

    atexit.register(write)
    if hasattr(sys, "monitoring"):
        _start_monitoring(find_own, record)
    else:
        _start_tracing(find_own, record)


def _start_monitoring(find_own, record):
    monitoring = sys.monitoring

    def on_line(code, line):
        file = find_own(code.co_filename)
        if file is not None:
            record(file, line, sys._getframe(1))
        return monitoring.DISABLE

    monitoring.use_tool_id(monitoring.COVERAGE_ID, "prerun_rounds")
    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, on_line)
    monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)


def _start_tracing(find_own, record):
    # Python before 3.12. A function whose lines were all seen is not traced again.
    waiting = {}

    def on_call(frame, event, arg):
        code = frame.f_code
        file = find_own(code.co_filename)
        if file is None:
            return None
        if code not in waiting:
            waiting[code] = {line for _, _, line in code.co_lines() if line is not None}
        left = waiting[code]
        if not left:
            return None

        def on_line(frame, event, arg):
            if event == "line" and frame.f_lineno in left:
                left.discard(frame.f_lineno)
                record(file, frame.f_lineno, frame)
            return on_line

        return on_line

    threading.settrace(on_call)
    sys.settrace(on_call)
