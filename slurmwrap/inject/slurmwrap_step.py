"""Count training steps inside the user's Python. `step()` counts explicitly and takes precedence over all other signs.

At the start of Python only this module is imported. It installs a finder that waits for the frameworks. The patches of
the frameworks (slurmwrap_torch, slurmwrap_frameworks) and the counter (slurmwrap_counter, which describes the files)
are imported with the first framework. Python 3.6 syntax, standard library; never raises.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Imported module -> the module here that patches it.
LAYERS = {
    "torch.optim.optimizer": "slurmwrap_torch",
    "torch.autograd": "slurmwrap_torch",
    "torch.utils.data.dataloader": "slurmwrap_torch",
    "torch.amp.grad_scaler": "slurmwrap_losses",
    "torch.cuda.amp.grad_scaler": "slurmwrap_losses",  # before 2.3
    "torch.distributed.fsdp.sharded_grad_scaler": "slurmwrap_losses",
    "torch._dynamo.eval_frame": "slurmwrap_losses",
    "keras.src.callbacks.callback_list": "slurmwrap_frameworks",  # Keras 3
    "keras.src.callbacks": "slurmwrap_frameworks",  # 2.13 to 2.15
    "keras.callbacks": "slurmwrap_frameworks",  # before
    "tf_keras.src.callbacks": "slurmwrap_frameworks",
    "tensorflow.python.keras.callbacks": "slurmwrap_frameworks",
    "keras.src.models.model": "slurmwrap_frameworks",  # Model.train_on_batch: Keras 3
    "keras.src.engine.training": "slurmwrap_frameworks",  # 2.13 to 2.15
    "keras.engine.training": "slurmwrap_frameworks",  # before
    "tf_keras.src.engine.training": "slurmwrap_frameworks",
    "deepspeed.runtime.engine": "slurmwrap_frameworks",
    "megatron.training.training": "slurmwrap_frameworks",
    "megatron.training": "slurmwrap_frameworks",  # one file before 2024
    "jax": "slurmwrap_frameworks",
    "transformers.generation.utils": "slurmwrap_frameworks",
}
# Modules that slurmwrap_short_epochs patches as well, for a pre-run that rehearses the end of an epoch.
SHORTENED = frozenset(
    (
        "torch.utils.data.dataloader",
        "tensorflow.python.data.ops.iterator_ops",
        "tensorflow.python.data.ops.dataset_ops",
        "grain._src.python.data_loader",
        "transformers.trainer_callback",
        "lightning.pytorch.loops.training_epoch_loop",
        "pytorch_lightning.loops.training_epoch_loop",
        "keras.src.callbacks.callback_list",
        "keras.src.callbacks",
        "keras.callbacks",
        "tf_keras.src.callbacks",
        "tensorflow.python.keras.callbacks",
    )
)
OF_SLURMWRAP = True
_HERE = os.path.dirname(os.path.abspath(__file__))
_step_dir = os.environ.get("SLURMWRAP_STEP_DIR", "")
_rehearses = os.environ.get("SLURMWRAP_REHEARSE", "") not in ("", "0")


def step() -> None:
    """Count one training step. Do nothing outside a job whose steps slurmwrap counts."""
    if _step_dir:
        try:
            _layer("slurmwrap_counter").counter.add("explicit")
        except Exception:
            pass


class Finder(object):
    """A finder on sys.meta_path that waits for the modules to patch and patches each after its execution."""

    def __init__(self) -> None:
        self.busy = set()  # type: Any

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name in self.busy or not (name in LAYERS or (_rehearses and name in SHORTENED)):
            return None
        self.busy.add(name)
        try:
            return self._hooked(name, path, target)
        except Exception:
            return None
        finally:
            self.busy.discard(name)

    def _hooked(self, name: str, path: "Any", target: "Any") -> "Any":
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self:
                continue
            if find is None:
                # A finder with the old interface, which Python < 3.12 still calls. It may find the module, so the
                # finders after it must not be asked before it.
                return None
            spec = find(name, path, target)
            if spec is not None:
                # If the loader is a class, changing it would affect all modules.
                if not isinstance(spec.loader, type):
                    _after_exec(spec.loader, name)
                return spec
        return None


def _after_exec(loader: "Any", name: str) -> None:
    execute = loader.exec_module

    def exec_module(module: "Any") -> None:
        if loader.__dict__.get("exec_module") is exec_module:
            # Restore the loader, unless someone else has patched it since.
            del loader.exec_module
        execute(module)
        if module.__name__ == name:
            hook(name, module)

    loader.exec_module = exec_module


def hook(name: str, module: "Any") -> None:
    """Patch `module`, which was just imported as `name`, so that its steps are counted and its epochs shortened."""
    try:
        if name in LAYERS:
            _layer(LAYERS[name]).hook(name, module, _layer("slurmwrap_counter").counter)
    except Exception:
        pass
    try:
        if _rehearses and name in SHORTENED:
            layer = _layer("slurmwrap_rehearsal")
            layer.rehearsal.active = layer.rehearsal.active or layer.is_begun_elsewhere()
            _layer("slurmwrap_short_epochs").hook(name, module, layer.rehearsal)
    except Exception:
        pass


def _layer(name: str) -> "Any":
    """Import a module from the directory of this file, regardless of sys.path.

    Each module is imported only once per process, so that there is a single counter.
    """
    known = sys.modules.get(name)
    if known is not None and hasattr(known, "OF_SLURMWRAP"):
        return known
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(name, [_HERE])  # type: Any
    module = type(sys)(name)
    module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, spec.loader
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _words() -> str:
    """Return the first words of this Python's command line, which name its program.

    Paths are reduced to their last component, and blanks are replaced by _.
    """
    try:
        with open("/proc/self/cmdline", "rb") as stream:
            said = stream.read(4096).split(b"\0")[1:9]
        names = [word.rpartition(b"/")[2][:80].decode("ascii", "replace").replace(" ", "_") for word in said]
        return "".join(" " + "".join(c if "!" <= c <= "~" else "?" for c in name) for name in names if name)
    except Exception:
        return ""


def _note(text: str, more: str = "") -> None:
    """Append a line to the trial's journal, which records the start and the crash of each Python process in order."""
    try:
        path = os.path.join(_step_dir, "journal")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, ("%s %d%s\n" % (text, os.getpid(), more)).encode("ascii"))
        finally:
            os.close(descriptor)
    except Exception:
        pass


def install() -> None:
    """Install the finder and, in a pre-run, the journal. sitecustomize calls this once per process."""
    sys.meta_path.insert(0, Finder())
    for name in SHORTENED.union(LAYERS):
        # A .pth file may have imported the module already.
        if name in sys.modules:
            hook(name, sys.modules[name])
    if os.environ.get("SLURMWRAP_PRERUN") == "1":
        _note("start", _words())
        before = sys.excepthook

        def excepthook(kind: "Any", value: "Any", trace: "Any") -> None:
            if not issubclass(kind, KeyboardInterrupt):
                _note("crash")
            before(kind, value, trace)

        sys.excepthook = excepthook
        _record_exits()
        _refuse_connections_after_training()


def _refuse_connections_after_training() -> None:
    """Refuse connections to other machines in a program that starts after the training: it may upload results."""
    try:
        if os.path.exists(os.path.join(_step_dir, "rehearsal")):
            _layer("slurmwrap_rehearsal").refuse_connections()
    except Exception:
        pass


def _record_exits() -> None:
    """Record where sys.exit, exit and quit are called with a code other than 0, so that a silent end has a place."""
    plain = sys.exit

    def exit(status: "Any" = None) -> None:
        _note_exit(status)
        plain(status)

    sys.exit = exit  # type: ignore[assignment]
    quitter = type(getattr(sys.modules.get("builtins"), "exit", None))
    if quitter.__name__ == "Quitter":
        called = quitter.__call__

        def call(self: "Any", code: "Any" = None) -> "Any":
            _note_exit(code)
            return called(self, code)

        quitter.__call__ = call  # type: ignore[method-assign]


def _note_exit(status: "Any") -> None:
    # A text is printed, so that end is not silent.
    if not status or isinstance(status, str):
        return
    try:
        caller = sys._getframe(2)
        row = "%s\t%d\tpython\n" % (os.path.abspath(caller.f_code.co_filename), caller.f_lineno)
        descriptor = os.open(os.path.join(_step_dir, "exits"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, row.encode("utf-8", "replace"))
        finally:
            os.close(descriptor)
    except Exception:
        pass
