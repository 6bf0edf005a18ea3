"""Record the loss of a training at backward(), without waiting for the GPU. Only in a real job (gsub --count-steps).

The loss of a counted step is the sum of all losses that were passed to backward() since the step before: the objective
that this step follows, also with gradient accumulation, if the program or its framework divides by the number of
micro-batches as usual. A loss on the CPU is read at once. A loss on a GPU is copied to page-locked memory on the
stream of the program, at most every TAKEN_EVERY_S, and read at a later step, when its event has been reached; if the
GPU is so far behind that all places are in use, this step's loss is left out. With a GradScaler the loss before scaling
is recorded; of Keras on other backends the mean loss of each epoch. Neither a graph nor a GPU tensor is kept.

The file `<name of the counter's file>.loss` holds a header (interval in steps, losses taken, NaN or infinite ones,
those of them at the end, CLOCK_MONOTONIC when it was written, number of rows) and at most MOST + 1 rows in fixed
columns: counted step, its time (CLOCK_MONOTONIC), mean loss since the row before. When there are MOST rows, pairs of
them are merged and the interval is doubled. Python 3.6 syntax, standard library; never raises into the program.
"""

import os
import sys
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OF_SLURMWRAP = True
MOST = 256
HEADER = "%12d %12d %12d %12d %16.6f %6d\n"
ROW = "%12d %16.6f %16.9g\n"
WRITTEN_EVERY_S = 5.0
TAKEN_EVERY_S = 0.1  # of losses on a GPU
_PLACES = 1024  # losses on their way from the GPU
_FAR = 1e300  # larger ones count as infinite
_getpid = os.getpid


class Losses(object):
    """The losses of this process. A forked child begins again, see Counter._forget."""

    def __init__(self, counter: "Any") -> None:
        self.counter = counter
        self.tensor = None  # type: Any
        # Nesting depth: a checkpointed layer runs backward passes within the backward pass.
        self.inside = 0
        self.forget()

    def forget(self) -> None:
        self.rows, self.texts, self.interval = [], [], 1  # type: Any, Any, int
        self.taken = self.bad = self.bad_at_end = 0
        self.noted = False  # a loss was passed to backward()
        self._end_row(0)
        self.objective, self.parts = 0.0, 0  # of the step that is under way, on the CPU
        self.scaled = None  # type: Any  # weak reference to a scaled loss, and the loss before
        self.written = self.copied = 0.0
        self.changed, self.copies = False, True
        # Page-locked memory, free places in it, places of the step under way, and steps that wait for the GPU.
        self.memory, self.free, self.places, self.waiting = None, [], [], []  # type: Any, Any, Any, Any

    def _end_row(self, step: int) -> None:
        self.sum, self.of, self.begins = 0.0, 0, step

    def note(self, tensors: "Any", weight: float = 1.0) -> None:
        """Add the losses `tensors`, with whose gradients the step under way is made."""
        if self.counter.pid != _getpid():
            self.counter.begin()
        for tensor in tensors:
            if tensor.numel() != 1:
                return
        self.noted = True
        for tensor in tensors:
            if self.scaled is not None and self.scaled[0]() is tensor:
                tensor, self.scaled = self.scaled[1], None
            if type(tensor) is not self.tensor:
                tensor = self._plain(tensor)
            if tensor.is_cuda:
                self._copy(tensor, weight)
            elif tensor.device.type == "cpu":
                self.objective += weight * tensor.item()
                self.parts += 1

    def _plain(self, tensor: "Any") -> "Any":
        """Return the plain tensor; raise an exception for a subclass whose value is not in this process."""
        if self.tensor is None:
            self.tensor = sys.modules["torch"].Tensor
        if hasattr(tensor, "placements"):  # a DTensor
            if not all(placement.is_replicate() for placement in tensor.placements):
                raise TypeError
            return tensor._local_tensor
        if type(tensor) is not self.tensor and not tensor.data_ptr():
            raise TypeError
        return tensor.as_subclass(self.tensor)

    def _copy(self, tensor: "Any", weight: float) -> None:
        """Begin the copy of a loss from the GPU, on the current stream and without waiting for it."""
        if not self.copies:
            return
        torch = sys.modules["torch"]  # type: Any
        # A copy in a graph would be repeated whenever the program runs the graph.
        if torch.cuda.is_current_stream_capturing():
            return
        if self.memory is None:
            # The program may have made another device the default one.
            memory = torch.empty(_PLACES, dtype=torch.float32, device="cpu", pin_memory=True)
            self.memory = list(_keep(memory).unbind())
            self.free = list(range(_PLACES))
        if not self.free:
            self.copies = False
            return
        place = self.free[-1]
        self.memory[place].copy_(tensor.detach().reshape(()), non_blocking=True)
        self.free.pop()
        self.places.append((place, weight, tensor.device))

    def scale(self, scaled: "Any", loss: "Any") -> None:
        """Note that `scaled` is `loss` times the factor of a GradScaler."""
        self.counter.ready()
        self.scaled = None
        if scaled is not loss and loss.numel() == 1:
            self.scaled = (weakref.ref(scaled), loss.detach())

    def step(self, count: int, now: float) -> None:
        """End the step under way, which is number `count`. The counter calls this with its lock held."""
        if self.parts:
            objective, self.objective, self.parts = self.objective, 0.0, 0
            self.add(count, now, objective)
        if self.places or self.waiting or not self.copies:
            self._step_of_gpu(count, now)
        self.scaled = None
        if self.changed and now - self.written > WRITTEN_EVERY_S:
            self.write(now)

    def _step_of_gpu(self, count: int, now: float) -> None:
        places, self.places = self.places, []
        if places and self.copies and all(device == places[0][2] for _, _, device in places):
            torch = sys.modules["torch"]  # type: Any
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(places[0][2]))
            self.waiting.append((event, places, count, now))
            self.copied = now
        else:
            # An incomplete sum is no loss, and one event shows nothing about a second GPU.
            self.free += [place for place, _, _ in places]
        self.read_arrived()
        self.copies = now - self.copied >= TAKEN_EVERY_S

    def read_arrived(self) -> None:
        """Read the losses that the GPU has delivered."""
        while self.waiting and self.waiting[0][0].query():
            _, places, count, now = self.waiting.pop(0)
            self.free += [place for place, _, _ in places]
            self.add(count, now, sum(weight * self.memory[place].item() for place, weight, _ in places))

    def add(self, count: int, now: float, loss: float) -> None:
        """Add the loss of step `count`."""
        if self.rows and count < self.rows[-1][0]:
            # Another source of steps decides now, and counts from the beginning.
            self.rows, self.texts, self.interval = [], [], 1
            self._end_row(0)
        self.taken += 1
        self.changed = True
        if not -_FAR < loss < _FAR:
            self.bad += 1
            self.bad_at_end += 1
            return
        self.bad_at_end = 0
        self.sum += loss
        self.of += 1
        self.latest = (count, now)
        if count >= self.begins + self.interval:
            self._add_row()

    def _add_row(self) -> None:
        row = self.latest + (self.sum / self.of, self.of)
        self.rows.append(row)
        self.texts.append(ROW % row[:3])
        self._end_row(row[0])
        if len(self.rows) >= MOST:
            self.rows = [_merge(*self.rows[i : i + 2]) for i in range(0, MOST, 2)]
            self.texts = [ROW % row[:3] for row in self.rows]
            self.interval *= 2

    def write(self, now: float) -> None:
        """Write the file. The row that is not complete is written as well."""
        self.changed, self.written = False, now
        last = [ROW % (self.latest + (self.sum / self.of,))] if self.of else []
        count = len(self.texts) + len(last)
        header = HEADER % (self.interval, self.taken, self.bad, self.bad_at_end, now, count)
        text = "".join([header] + self.texts + last).encode("ascii")
        descriptor = sys.modules["slurmwrap_counter"]._open_file(self.counter.path + ".loss")  # type: Any
        try:
            os.pwrite(descriptor, text, 0)
        finally:
            os.close(descriptor)

    def write_at_exit(self) -> None:
        """Write what was not yet written, at the end of the process."""
        if self.counter.pid == _getpid():
            # The GPU may be in an error state.
            _quietly(self.read_arrived)
            if self.changed:
                self.write(self.counter.clock())


def _merge(one: "Any", other: "Any") -> "Any":
    of = one[3] + other[3]
    return (other[0], other[1], (one[2] * one[3] + other[2] * other[3]) / of, of)


def _keep(memory: "Any") -> "Any":
    """Return page-locked memory that is never freed: freeing it in a forked child would abort that process."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return memory


def get(counter: "Any") -> "Losses":
    """Return the losses of this process, to which `counter` reports its steps."""
    if counter.losses is None:
        counter.losses = Losses(counter)
        import atexit

        atexit.register(_quietly, counter.losses.write_at_exit)
    return counter.losses


def _quietly(action: "Any", *arguments: "Any") -> None:
    try:
        action(*arguments)
    except Exception:
        pass


def hook(name: str, module: "Any", counter: "Any") -> None:
    """Patch `module`, which was just imported as `name`, so that losses are recorded. Not in a pre-run."""
    if os.environ.get("SLURMWRAP_STEP_NAMED") != "1":
        return
    if name == "torch.autograd":
        _hook_backward(module, get(counter))
    elif name == "torch._dynamo.eval_frame":
        # Else Dynamo would trace these functions when a compiled function calls backward().
        for function in _traced + [Losses.note, Losses._plain, Losses._copy, type(counter).begin]:
            module.skip_code(function.__code__)
    elif name.startswith("deepspeed"):
        _hook_engine(module.DeepSpeedEngine, get(counter))
    else:
        for kind in ("GradScaler", "ShardedGradScaler"):
            if "scale" in getattr(module, kind, object).__dict__:
                _hook_scale(getattr(module, kind), get(counter))


# The wrapper around the autograd engine.
_traced = []  # type: Any


def _hook_backward(autograd: "Any", losses: "Losses") -> None:
    """Wrap the function that torch.autograd.backward calls, so that no frame is between it and the user's code."""
    name = "_engine_run_backward" if hasattr(autograd, "_engine_run_backward") else "backward"
    plain = getattr(autograd, name)

    def noted(*args: "Any", **kwargs: "Any") -> "Any":
        if losses.inside or not kwargs.get("accumulate_grad", True):  # False in torch.autograd.grad
            return plain(*args, **kwargs)
        losses.inside += 1
        try:
            try:
                losses.note(args[0] if type(args[0]) is tuple else args[:1])
            except Exception:
                pass
            return plain(*args, **kwargs)
        finally:
            losses.inside -= 1

    _traced.append(noted)
    _mark(noted, plain)
    setattr(autograd, name, noted)


def _hook_scale(kind: "Any", losses: "Losses") -> None:
    """Record the losses before a GradScaler multiplies them."""
    plain = kind.scale

    def scale(self, outputs: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        scaled = plain(self, outputs, *args, **kwargs)
        _quietly(losses.scale, scaled, outputs)
        return scaled

    _mark(scale, plain)
    kind.scale = scale


def _hook_engine(kind: "Any", losses: "Losses") -> None:
    """Record the losses that are passed to DeepSpeed, which divides and scales them itself."""
    plain = kind.backward

    def backward(self, loss: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        losses.inside += 1
        try:
            try:
                losses.note((loss,), 1.0 / self.gradient_accumulation_steps())
            except Exception:
                pass
            return plain(self, loss, *args, **kwargs)
        finally:
            losses.inside -= 1

    _mark(backward, plain)
    kind.backward = backward


def _mark(wrapper: "Any", plain: "Any") -> None:
    sys.modules["slurmwrap_step"]._layer("slurmwrap_torch").like(wrapper, plain)
