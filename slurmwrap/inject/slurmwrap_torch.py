"""Count the steps of PyTorch optimizers by torch's own hook, and before the first step backward passes and batches.

slurmwrap_step imports this module when torch is imported. The count of a process is that of its busiest optimizer (a
GAN has two). Backward passes and DataLoader batches are only weak signs: with gradient accumulation there are many per
step. They end the trial only if no optimizer exists at all, after WEAK_STEPS of them and WEAK_S seconds, and their
wrappers are removed at the first real step. Python 3.6 syntax, standard library; never raises into the program.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OF_SLURMWRAP = True
WEAK_STEPS = 100
WEAK_S = 30.0
_WRAPPED = "_slurmwrap"


def hook(name: str, module: "Any", counter: "Any") -> None:
    """Patch `module`, which was just imported as `name`, so that `counter` counts its steps."""
    if name == "torch.optim.optimizer":
        _hook_optimizers(module, Optimizers(counter))
        if os.environ.get("SLURMWRAP_PRERUN") == "1":
            # Tell the supervisor that torch is used, so that it waits for a step of an optimizer.
            quietly(counter.leave, "torch")
            _hook_making(module.Optimizer, counter)
    elif os.environ.get("SLURMWRAP_STEP_NAMED") == "1":
        # Weak signs are not needed in a real job, but its losses are recorded.
        if name == "torch.autograd":
            sys.modules["slurmwrap_step"]._layer("slurmwrap_losses").hook(name, module, counter)
    elif name == "torch.autograd":
        _hook_backward(module, Weak(counter, "backward"))
    else:
        if os.environ.get("SLURMWRAP_PRERUN") == "1":
            # Before the weak sign, which takes its own wrapper away when it is not needed any more.
            times = sys.modules["slurmwrap_step"]._layer("slurmwrap_loader_times")
            quietly(times.hook, module, counter.step_dir)
        _hook_batches(module, Weak(counter, "dataloader"))


def quietly(action: "Any", *arguments: "Any") -> None:
    """Call `action` and ignore its exceptions, which must not reach the program."""
    try:
        action(*arguments)
    except Exception:
        pass


class Optimizers(object):
    """Counts the steps of each optimizer, and records once how large its parameters are."""

    def __init__(self, counter: "Any") -> None:
        self.counter = counter
        self.known = set()  # type: Any
        self.doubtful = []  # type: Any
        self.layers = None  # type: Any  # slurmwrap_model_layers.Layers, from the first step of a pre-run on

    def after_step(self, optimizer: "Any", *_: "Any") -> None:
        try:
            self._count(optimizer)
        except Exception:
            pass

    def _count(self, optimizer: "Any") -> None:
        if _inner(optimizer):
            return
        counter = self.counter
        count = counter.of(optimizer) + 1
        if "found_inf" in optimizer.__dict__:
            count -= self._skipped(optimizer, count)
        counter.set_of(optimizer, count)
        if count == 1:
            quietly(self._measure, optimizer)
        elif count <= 3 and self.layers is not None:
            quietly(self.layers.step, count)
        counter.saw("optimizer", count)

    def _skipped(self, optimizer: "Any", count: int) -> int:
        """Return the number of skipped steps of a fused optimizer.

        GradScaler also calls a fused optimizer if the step must be skipped, and only the GPU knows whether it was.
        Reading that would stall the program, so the values are read when the process is about to park.
        """
        found = optimizer.found_inf
        if found.device.type == "cpu":
            return int(float(found) != 0.0)
        park_after = self.counter.park_after
        if not park_after:
            return 0
        self.doubtful.append((optimizer, found))
        if count < park_after:
            return 0
        mine = [inf for owner, inf in self.doubtful if owner is optimizer]
        self.doubtful = [pair for pair in self.doubtful if pair[0] is not optimizer]
        return sum(1 for inf in mine if float(inf) != 0.0)

    def _measure(self, optimizer: "Any") -> None:
        tensors = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in self.known]
        self.known.update(map(id, tensors))
        self.counter.model_of([size for tensor in tensors for size in sizes(tensor)], world_size())
        if os.environ.get("SLURMWRAP_PRERUN") == "1" and tensors:
            if self.layers is None:
                layer = sys.modules["slurmwrap_step"]._layer("slurmwrap_model_layers")
                self.layers = layer.Layers(self.counter, sizes)
            self.layers.begin(tensors)


def sizes(tensor: "Any") -> "Any":
    """Return the bytes of each parameter in `tensor`: a DTensor in full size, FSDP's flat parameter as its parts."""
    each = tensor.element_size()
    parts = getattr(tensor, "_numels", None)
    if isinstance(parts, (tuple, list)) and parts:
        return [int(part) * each for part in parts]
    return [int(getattr(tensor, "ds_numel", None) or tensor.numel()) * each]  # ds_numel: DeepSpeed's ZeRO-3


def world_size() -> int:
    """Return the number of processes of torch.distributed; 1 without it."""
    try:
        distributed = sys.modules["torch.distributed"]
        return int(distributed.get_world_size()) if distributed.is_initialized() else 1
    except Exception:
        return 1


def _inner(optimizer: "Any") -> bool:
    """Return whether this is a step() inside a step() of the same optimizer.

    A subclass may call its parent's step(), and both are hooked; the inner call must not count.
    """
    hooked = 0
    for kind in type(optimizer).__mro__:
        own = kind.__dict__.get("step")
        if own is not None and getattr(own, "hooked", False):
            hooked += 1
    if hooked < 2:
        return False
    # All hooked step functions have the same code, because torch creates them from one function.
    code = type(optimizer).step.__code__
    frame = sys._getframe(1)  # type: Any
    depth = 0
    while frame is not None and depth < 2:
        depth += frame.f_code is code and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return depth > 1


def _hook_optimizers(module: "Any", optimizers: "Optimizers") -> None:
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        _hook_by_class(module.Optimizer, optimizers)
        return

    def after_step(optimizer: "Any", *_: "Any") -> None:
        optimizers.after_step(optimizer)

    # Dynamo would trace the hook and warn about os.getpid. This only marks the hook and does not import torch._dynamo.
    disable = getattr(sys.modules["torch"], "_disable_dynamo", None)
    register(disable(after_step) if disable is not None else after_step)


def _hook_making(base: "Any", counter: "Any") -> None:
    """Leave a mark when an optimizer is created: its steps will come, however long the program takes until then."""
    # Every __init__ calls this method since torch 1.13.
    plain = getattr(base, "_patch_step_function", None)
    if plain is None or getattr(plain, _WRAPPED, False):
        return

    def _patch_step_function(self: "Any") -> "Any":
        quietly(counter.leave, "optimizer")
        return plain(self)

    like(_patch_step_function, plain)
    base._patch_step_function = _patch_step_function


def _hook_by_class(base: "Any", optimizers: "Optimizers") -> None:
    """Wrap `step` of each class when its first optimizer is created: torch < 2 has no hook for all optimizers."""
    init = base.__init__
    if getattr(init, _WRAPPED, False):
        return

    def __init__(self, *args: "Any", **kwargs: "Any") -> None:
        init(self, *args, **kwargs)
        quietly(_wrap_step, type(self), optimizers)
        if os.environ.get("SLURMWRAP_PRERUN") == "1":
            quietly(optimizers.counter.leave, "optimizer")

    like(__init__, init)
    base.__init__ = __init__


def _wrap_step(kind: "Any", optimizers: "Optimizers") -> None:
    plain = kind.step
    if getattr(plain, _WRAPPED, False):
        return

    def step(self, *args: "Any", **kwargs: "Any") -> "Any":
        outer = id(self) not in _stepping
        _stepping.add(id(self))
        try:
            result = plain(self, *args, **kwargs)
        finally:
            if outer:
                _stepping.discard(id(self))
        if outer:
            optimizers.after_step(self)
        return result

    step.__dict__.update(plain.__dict__)
    like(step, plain)
    kind.step = step


_stepping = set()  # type: Any


def like(wrapper: "Any", plain: "Any") -> None:
    """Copy the names of the wrapped function, as functools.wraps does, and mark the wrapper as slurmwrap's own."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        try:
            setattr(wrapper, name, getattr(plain, name))
        except AttributeError:
            pass
    wrapper.__wrapped__ = plain
    setattr(wrapper, _WRAPPED, True)


class Weak(object):
    """A weak sign of training (backward passes or batches), used until real steps are counted."""

    def __init__(self, counter: "Any", source: str) -> None:
        self.counter, self.source = counter, source
        # Nesting depth: a checkpointed layer runs backward passes within the backward pass.
        self.inside = 0
        self.began = 0.0
        # Set if an optimizer exists: the supervisor waits for its steps, so the sign never parks the process.
        self.stays = False
        self.undo = lambda: None  # type: Any

    def seen(self) -> None:
        counter = self.counter
        counter.ready()
        if counter.beaten(self.source):
            self.undo()
            return
        count = counter.added[self.source] = counter.added.get(self.source, 0) + 1
        self.began = self.began if count > 1 else counter.clock()
        counter.saw(self.source, count, parks=self._parks(count))

    def _parks(self, count: int) -> bool:
        counter = self.counter
        enough = counter.park_after and count >= WEAK_STEPS and counter.clock() - self.began >= WEAK_S
        if not enough or self.stays:
            return False
        elsewhere = any(name in sys.modules for name in ("jax", "tensorflow"))
        self.stays = optimizer_exists() or (self.source == "dataloader" and not elsewhere)
        return not self.stays


def optimizer_exists() -> bool:
    """Return whether a torch optimizer exists. Only the types of all objects are read; none of their code is called."""
    import gc

    kind = sys.modules["torch.optim.optimizer"].Optimizer
    return any(kind in type(thing).__mro__ for thing in gc.get_objects())


def _hook_backward(autograd: "Any", weak: "Weak") -> None:
    """Count backward passes.

    Patch the function that torch.autograd.backward and grad both call, if there is one, so that the wrapper adds no
    frame between the user's code and torch.autograd.backward.
    """
    name = "_engine_run_backward" if hasattr(autograd, "_engine_run_backward") else "backward"
    plain = getattr(autograd, name)
    if getattr(plain, _WRAPPED, False):
        return

    def counted(*args: "Any", **kwargs: "Any") -> "Any":
        weak.inside += 1
        try:
            result = plain(*args, **kwargs)
        finally:
            weak.inside -= 1
        if not weak.inside and kwargs.get("accumulate_grad", True):  # False in torch.autograd.grad
            quietly(weak.seen)
        return result

    def undo() -> None:
        if getattr(autograd, name) is counted:
            setattr(autograd, name, plain)

    like(counted, plain)
    weak.undo = undo
    setattr(autograd, name, counted)


def _hook_batches(module: "Any", weak: "Weak") -> None:
    kind = module._BaseDataLoaderIter
    plain = kind.__next__
    if getattr(plain, _WRAPPED, False):
        return

    def __next__(self) -> "Any":
        batch = plain(self)
        quietly(weak.seen)
        return batch

    def undo() -> None:
        if kind.__next__ is __next__:
            kind.__next__ = plain

    like(__next__, plain)
    weak.undo = undo
    kind.__next__ = __next__
