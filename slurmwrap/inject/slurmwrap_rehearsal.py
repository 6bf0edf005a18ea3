"""Continue a program of a pre-run after its steps with shortened epochs, so that what runs late is executed soon.

The counter calls begin() in the step in which the program would otherwise stop, and step() in each later one. From then
on loaders end after a few batches (slurmwrap_short_epochs), and the loops around the step are ended at their next
iteration: the loop over batches at once, the loops around it after the second epoch has made a step. So the end of an
epoch, validation, checkpoints, the next epoch and the end of the program run within a minute. A `for` loop is ended by
exhausting its iterator, a `while` loop by jumping to the statement after it, and a block that runs only every N
iterations (`if step % save_every == 0:`) is entered by a jump: all from a trace function, so that the program's code is
not changed. New connections to other machines are refused, because an upload cannot be undone.

The file `rehearsal` in the step directory records what happened, one event per line. Python 3.6 syntax, standard
library; the counter ignores all exceptions. Sources: Objects/frameobject.c and Include/internal/pycore_frame.h of
CPython 3.6 to 3.13 (value stack of a frame that is being traced).
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OF_SLURMWRAP = True
# Batches of a loader before it ends; more if an optimizer step needs more.
BATCHES = 2
# Steps and seconds without any loop that ends, after which the program is parked.
STILL_STEPS = 20
STILL_S = 5.0
# How often a block that runs only every N iterations is entered.
ENTRIES = 2
# Packages whose loops are not the program's own. Trainers among them are shortened by slurmwrap_short_epochs.
_FRAMEWORKS = frozenset(
    "accelerate apex deepspeed flax functorch jax jaxlib keras lightning lightning_fabric numpy optax"
    " pytorch_lightning ray tensorflow tf_keras torch torch_xla torchvision tqdm transformers".split()
)
_HERE = os.path.dirname(os.path.abspath(__file__))
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__))
_step_dir = os.environ.get("SLURMWRAP_STEP_DIR", "")


class ProgramShortening(object):
    """The shortened rest of the program in this process."""

    def __init__(self) -> None:
        self.clock = time.monotonic
        self.active = False
        # Whether an epoch after the first one has begun, so that all loops may end.
        self.is_second_epoch = False
        # Whether a loader gave a batch since the last step, whether one has ended since begin(), and whether one began
        # after that. A loader that is read ahead ends while its last batch is still to be used.
        self.fetched = self.loader_ended = self.loader_began = False
        # Batches that the loader in use has given, and after how many batches loaders end.
        self.batches, self.limit = 0, BATCHES
        self.steps = 0
        self.steps_at_end, self.ended_at = 0, 0.0
        self.endings = None  # type: Any

    def begin(self, steps: int) -> None:
        """Shorten everything from now on. `steps`: how many steps the program has made. Call it in a step."""
        self.limit = max(BATCHES, -(-self.batches // max(1, steps)))
        self.active, self.ended_at = True, self.clock()
        note("begin")
        refuse_connections()
        self.endings = LoopEndings(self)
        self._end_loops(sys._getframe(1))

    def step(self) -> bool:
        """Note one more step of the program. Return whether to park it because no end can be reached."""
        self.steps += 1
        if not self.is_second_epoch and (self.endings.epoch_began or self.loader_began):
            self.is_second_epoch = True
            note("epoch")
        self._end_loops(sys._getframe(1))
        return self.steps - self.steps_at_end >= STILL_STEPS and self.clock() - self.ended_at >= STILL_S

    def _end_loops(self, frame: "Any") -> None:
        loops = find_loops_around(frame)
        # A loader ends the loop over its batches itself, unless the program starts it again and again.
        by_loader = self.fetched and self.steps < 2
        self.fetched = False
        if not loops:
            return
        self.endings.add(loops[0], ENTER if by_loader else END)
        if len(loops) == 1:
            self.is_second_epoch = True
        elif self.is_second_epoch:
            for loop in loops[1:]:
                self.endings.add(loop, END)
        else:
            self.endings.add(loops[1], WATCH)

    def note_end(self, what: str) -> None:
        """Record that a loop, a loader or an epoch of a framework was ended."""
        self.steps_at_end, self.ended_at = self.steps, self.clock()
        note(what)


def note(event: str) -> None:
    """Append a line to the file `rehearsal`."""
    path = os.path.join(_step_dir, "rehearsal")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, (event + "\n").encode("utf-8", "replace"))
    finally:
        os.close(descriptor)


def is_begun_elsewhere() -> bool:
    """Return whether another process of this pre-run has begun its rehearsal: this one runs after the training."""
    return os.path.exists(os.path.join(_step_dir, "rehearsal"))


# --- loops ----------------------------------------------------------------------------------------------------------


class Loop(object):
    """A loop of the program's source in a running frame."""

    def __init__(self, frame: "Any", node: "Any", after: int) -> None:
        self.frame, self.node, self.after = frame, node, after
        self.is_for = type(node).__name__ == "For"
        body = node.body[0].lineno
        head = node.iter if self.is_for else node.test
        last = getattr(head, "end_lineno", None) or max(node.lineno, body - 1)
        self.header = range(node.lineno, max(node.lineno, min(last, max(body - 1, node.lineno))) + 1)
        # `while True:` has no code of its own: an iteration begins at its first statement.
        plain = type(node.body[0]).__name__ not in ("For", "While", "With", "Try")
        self.first = body if not self.is_for and plain else -1

    def is_iteration(self, line: int, before: int) -> bool:
        """Return whether execution that goes from line `before` to `line` begins an iteration."""
        return line in self.header or (line == self.first and before != line)

    def key(self) -> "Any":
        return id(self.frame), self.node.lineno


# What is done with a loop: its blocks are entered; besides, its next iteration is noted; the loop is ended then.
ENTER, WATCH, END = range(3)


class LoopEndings(object):
    """The loops that are to be ended or watched when their next iteration begins."""

    def __init__(self, rehearsal: "ProgramShortening") -> None:
        self.rehearsal = rehearsal
        self.epoch_began = False
        self.loops = {}  # type: Any
        self.failed = set()  # type: Any
        # (file, line of `if`) -> how often its block was entered.
        self.entered = {}  # type: Any
        # (id of the frame, line of `if`) -> first line of its block.
        self.intervals = {}  # type: Any

    def add(self, loop: "Loop", purpose: int) -> None:
        key = loop.key()
        known = self.loops.get(key)
        if key in self.failed or (known is not None and known[1] >= purpose):
            return
        # The tracer of a debugger or of coverage stays.
        if sys.gettrace() not in (None, _trace_nothing):
            return
        self.loops[key] = (loop, purpose)
        for line, block in list_intervals(loop.node):
            self.intervals[(id(loop.frame), line)] = block
        loop.frame.f_trace = self._make_tracer(loop.frame)
        sys.settrace(_trace_nothing)

    def _make_tracer(self, frame: "Any") -> "Any":
        before = [frame.f_lineno]

        # Returning a tracer would set it again where _reach() removes it; before Python 3.10 a frame with a tracer but
        # without tracing does not know its line.
        def trace(frame: "Any", event: str, argument: "Any") -> None:
            if event == "line":
                try:
                    self._reach(frame, frame.f_lineno, before[0])
                except Exception:
                    pass
                before[0] = frame.f_lineno
            elif event == "return":
                self._forget(frame)

        return trace

    def _reach(self, frame: "Any", line: int, before: int) -> None:
        if (id(frame), line) in self.intervals and self._enter(frame, line):
            return
        # Inner loops come later in the source.
        mine = sorted((key for key in self.loops if key[0] == id(frame)), reverse=True)
        for key in mine:
            loop, purpose = self.loops[key]
            if purpose == ENTER or not loop.is_iteration(line, before):
                continue
            del self.loops[key]
            if purpose == WATCH:
                self.epoch_began = True
            elif end_loop(loop):
                where = "%s:%d" % (os.path.abspath(frame.f_code.co_filename), loop.node.lineno)
                self.rehearsal.note_end("loop " + where)
            else:
                self.failed.add(key)
            self._stop_if_done(frame)
            return

    def _enter(self, frame: "Any", line: int) -> bool:
        """Enter a block that runs only every N iterations, and return whether that was possible and is still due."""
        import warnings

        place = (frame.f_code.co_filename, line)
        if self.entered.get(place, 0) >= ENTRIES:
            return False
        self.entered[place] = self.entered.get(place, 0) + 1
        # Since Python 3.12 a jump sets unbound variables to None and warns of it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame.f_lineno = self.intervals[(id(frame), line)]
        note("interval %s:%d" % (os.path.abspath(place[0]), line))
        return True

    def _forget(self, frame: "Any") -> None:
        for key in [key for key in self.loops if key[0] == id(frame)]:
            del self.loops[key]
        self.failed = set(key for key in self.failed if key[0] != id(frame))
        self.intervals = dict(pair for pair in self.intervals.items() if pair[0][0] != id(frame))
        self._stop_if_done(frame)

    def _stop_if_done(self, frame: "Any") -> None:
        if not any(key[0] == id(frame) for key in self.loops):
            frame.f_trace = None
        if not self.loops and sys.gettrace() is _trace_nothing:
            sys.settrace(None)


def _trace_nothing(frame: "Any", event: str, argument: "Any") -> None:
    """Trace no new frame: the frames with loops have tracers of their own."""


def find_loops_around(frame: "Any") -> "Any":
    """Return the program's own loops around the running line, innermost first, in all frames up to the outermost.

    A loop over optimizers (`for one in optimizers: one.step()`) is no loop over batches and is left out.
    """
    found = []
    while frame is not None:
        if is_own(frame):
            found += _find_in_frame(frame)
        frame = frame.f_back
    return found


def is_own(frame: "Any") -> bool:
    """Return whether a frame is of the program or of a library that is not known to own its loops."""
    path = frame.f_code.co_filename
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if path.startswith("<") or package in _FRAMEWORKS:
        return False
    path = os.path.abspath(path)
    return "-packages/" in path or not path.startswith((_LIBRARY + "/", _HERE + "/"))


def _find_in_frame(frame: "Any") -> "Any":
    code = frame.f_code
    if code.co_name.startswith("<") and code.co_name != "<module>":
        return []
    scope = _find_scope(code.co_filename, frame.f_globals, frame.f_lineno)
    found = []
    for node, after in reversed(_list_loops(scope)):
        if _is_inside(node, frame.f_lineno) and not _is_over_optimizers(node, frame.f_lineno):
            found.append(Loop(frame, node, after))
    return found


_trees = {}  # type: Any


def _find_scope(path: str, names: "Any", line: int) -> "Any":
    """Return the syntax tree of the function around a line of a file, or of its module."""
    import ast
    import linecache

    if path not in _trees:
        _trees[path] = ast.parse("".join(linecache.getlines(path, names)))
    scope = _trees[path]
    for node in ast.walk(scope):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno < line <= _find_last_line(node):
            # ast.walk goes from the outside to the inside.
            scope = node
    return scope


def _find_last_line(node: "Any") -> int:
    known = getattr(node, "end_lineno", None)  # since Python 3.8
    if known:
        return int(known)
    import ast

    return max(getattr(one, "lineno", 0) for one in ast.walk(node))


def _list_loops(scope: "Any") -> "Any":
    """Return (loop, line of the statement after it or 0) for all loops of a function or module, outer loops first.

    A loop at the end of a loop has the line after that one, because both are ended. 0: there is no such statement, or
    it is outside of a `with` or `try` block, whose end must run.
    """
    found = []  # type: Any
    todo = [(scope.body, 0)]
    while todo:
        body, after_body = todo.pop()
        for at, node in enumerate(body):
            after = body[at + 1].lineno if at + 1 < len(body) else after_body
            kind = type(node).__name__
            if kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
                continue
            if kind in ("For", "While"):
                found.append((node, after))
            keeps = kind in ("For", "While", "If")
            for field in ("body", "orelse", "finalbody"):
                todo.append((getattr(node, field, None) or [], after if keeps else 0))
            for handler in getattr(node, "handlers", None) or []:
                todo.append((handler.body, 0))
    return sorted(found, key=lambda pair: pair[0].lineno)


def list_intervals(loop: "Any") -> "Any":
    """Return (line of `if`, first line of its block) for the blocks in a loop that run only every N iterations.

    A block that makes an optimizer step is left out: it belongs to gradient accumulation.
    """
    import ast

    found = []
    todo = list(loop.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.If):
            block = node.body[0].lineno
            if block > _find_last_line(node.test) and _is_interval(node.test) and not _makes_step(node.body):
                found.append((node.lineno, block))
        for field in ("body", "orelse", "finalbody"):
            todo += getattr(node, field, None) or []
    return found


def _is_interval(test: "Any") -> bool:
    """Return whether a condition contains `x % n == y` or `not x % n`."""
    import ast

    for node in ast.walk(test):
        value = None  # type: Any
        if isinstance(node, ast.Compare) and all(isinstance(one, ast.Eq) for one in node.ops):
            value = node.left
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = node.operand
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod) and not hasattr(value.left, "s"):
            return True
    return False


def _makes_step(body: "Any") -> bool:
    import ast

    for part in body:
        for node in ast.walk(part):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in ("zero_grad", "backward", "optimizer", "optim", "opt", "scaler", "accumulate"):
                return True
    return False


def is_repeated(frame: "Any") -> bool:
    """Return whether the running line is in a `while` loop: a generator of that kind starts its loader again."""
    scope = _find_scope(frame.f_code.co_filename, frame.f_globals, frame.f_lineno)
    return any(type(node).__name__ == "While" and _is_inside(node, frame.f_lineno) for node, _ in _list_loops(scope))


def is_stop_handled(frame: "Any") -> bool:
    """Return whether the running line is in a `try` block that catches StopIteration."""
    import ast

    scope = _find_scope(frame.f_code.co_filename, frame.f_globals, frame.f_lineno)
    for node in ast.walk(scope):
        if isinstance(node, ast.Try) and _is_inside(node, frame.f_lineno):
            for handler in node.handlers:
                names = ast.walk(handler.type) if handler.type is not None else ()
                caught = set(one.id for one in names if isinstance(one, ast.Name))
                if handler.type is None or caught & {"StopIteration", "Exception", "BaseException"}:
                    return True
    return False


def _is_inside(node: "Any", line: int) -> bool:
    return any(part.lineno <= line <= _find_last_line(part) for part in node.body)


def _is_over_optimizers(node: "Any", line: int) -> bool:
    import ast

    if type(node).__name__ != "For":
        return False
    targets = set(one.id for one in ast.walk(node.target) if isinstance(one, ast.Name))
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "step":
            owner = part.func.value  # type: Any
            while isinstance(owner, (ast.Attribute, ast.Subscript)):
                owner = owner.value
            if part.lineno == line and isinstance(owner, ast.Name) and owner.id in targets:
                return True
    return False


def end_loop(loop: "Loop") -> bool:
    """End a loop whose next iteration begins. Return whether that was possible. Call it in a trace function."""
    if loop.is_for:
        iterator = find_top_of_stack(loop.frame)
        if iterator is not None and exhaust(iterator):
            return True
    if not loop.after:
        return False
    try:
        loop.frame.f_lineno = loop.after
    except (ValueError, AttributeError):
        return False
    return True


# Iterators with a position. The value is beyond any end.
_POSITIONS = {
    "range_iterator": sys.maxsize >> 1,
    "longrange_iterator": sys.maxsize >> 1,
    "list_iterator": sys.maxsize >> 1,
    "tuple_iterator": sys.maxsize >> 1,
    "list_reverseiterator": -1,
}
# Iterators over another one, which they hold.
_OUTER = ("enumerate", "zip", "map", "filter", "islice", "chain", "takewhile", "starmap")
_DRAINED = ("dict_keyiterator", "dict_valueiterator", "dict_itemiterator", "set_iterator", "str_iterator")


def exhaust(iterator: "Any", depth: int = 4) -> bool:
    """Make `iterator` end at its next call. Return whether that was possible."""
    kind = type(iterator)
    name = kind.__name__
    if name in _POSITIONS and kind.__module__ == "builtins":
        iterator.__setstate__(_POSITIONS[name])
        return True
    if name == "generator":
        iterator.close()
        return True
    if name in _DRAINED and kind.__module__ == "builtins":
        for _ in iterator:
            pass
        return True
    if getattr(kind, "_slurmwrap_shortened", False):
        iterator.__dict__["_slurmwrap_over"] = True
        return True
    if depth and name in _OUTER and kind.__module__ in ("builtins", "itertools"):
        import gc

        for held in gc.get_referents(iterator):
            inner = held if isinstance(held, tuple) else (held,)
            if any(hasattr(type(one), "__next__") and exhaust(one, depth - 1) for one in inner):
                return True
    return False


def find_top_of_stack(frame: "Any") -> "Any":
    """Return the iterator on top of the value stack of a frame that is being traced; None if it cannot be found."""
    if sys.version_info < (3, 11):
        # The garbage collector visits the stack only while the frame is traced.
        import gc

        held = gc.get_referents(frame)
    else:
        held = _read_stack(frame)
    top = held[-1] if held else None
    return top if hasattr(type(top), "__next__") else None


# Offsets in _PyInterpreterFrame (pycore_frame.h) on 64-bit machines: code, frame object, stack pointer, local variables.
_OFFSETS = {(3, 11): (32, 40, 64, 72), (3, 12): (0, 48, 64, 72), (3, 13): (0, 48, 64, 72)}


def _read_stack(frame: "Any") -> "Any":
    """Return a list with the topmost value of the stack: since 3.11 the collector does not visit running frames.

    Nothing is read unless the structure holds this frame and its code where they are expected.
    """
    import ctypes

    offsets = _OFFSETS.get(sys.version_info[:2])
    # In PyPy id() is no address; debug and free-threaded builds have other structures.
    is_default = sys.implementation.name == "cpython" and not getattr(sys, "abiflags", "")
    if offsets is None or not is_default or ctypes.sizeof(ctypes.c_void_p) != 8:
        return []
    code, owner, depth, variables = offsets
    pointer = ctypes.c_void_p.from_address
    inner = pointer(id(frame) + 24).value
    if not inner or pointer(inner + code).value != id(frame.f_code) or pointer(inner + owner).value != id(frame):
        return []
    count = ctypes.c_int.from_address(inner + depth).value
    names = frame.f_code
    most = len(names.co_varnames) + len(names.co_cellvars) + len(names.co_freevars)
    least = len(set(names.co_varnames) | set(names.co_cellvars)) + len(names.co_freevars)
    if not least < count <= most + names.co_stacksize:
        return []
    top = pointer(inner + variables + 8 * (count - 1)).value
    return [ctypes.cast(top, ctypes.py_object).value] if top else []


# --- connections ----------------------------------------------------------------------------------------------------


def refuse_connections() -> None:
    """Refuse new connections of Python's sockets to other machines, and record it.

    What a program uploads at its end cannot be undone. Existing connections and those on this machine go on.
    """
    import errno
    import socket

    def wrap(name: str, plain: "Any") -> "Any":
        def connect(self: "Any", address: "Any") -> "Any":
            # Programs connect datagram sockets to find their own address; that sends nothing.
            sends = self.family in (socket.AF_INET, socket.AF_INET6) and self.type == socket.SOCK_STREAM
            if sends and not is_on_this_machine(address[0]):
                note("refused %s" % (address[0],))
                if name == "connect_ex":
                    return errno.ENETUNREACH
                raise OSError(errno.ENETUNREACH, "a slurmwrap pre-run makes no new connections after its steps")
            return plain(self, address)

        connect.refuses = True  # type: ignore[attr-defined]
        return connect

    for name in ("connect", "connect_ex"):
        plain = getattr(socket.socket, name)
        if not hasattr(plain, "refuses"):
            setattr(socket.socket, name, wrap(name, plain))


def is_on_this_machine(host: "Any") -> bool:
    """Return whether a host name or address is one of this machine. A socket can only be bound to such an address."""
    import socket

    for family, kind, protocol, _, address in socket.getaddrinfo(host, None, 0, socket.SOCK_DGRAM):
        probe = socket.socket(family, kind, protocol)
        try:
            probe.bind((address[0], 0) + tuple(address[2:]))
        except OSError:
            return False
        finally:
            probe.close()
    return True


rehearsal = ProgramShortening()
