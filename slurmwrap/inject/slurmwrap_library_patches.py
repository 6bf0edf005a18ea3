"""Patches, applied at import, for libraries that open files in native code and for frameworks that use many GPUs.

Each row of PATHS names a Python call with a path that C, C++ or Rust code then opens; slurmwrap_guard decides which
path it gets instead. The frameworks are limited to the trial's GPUs. No library is imported here; a finder waits for
them. Used in a trial only. Python 3.6 syntax, standard library; a library with an unexpected structure is not changed.

After torch 1.13-2.13, safetensors 0.4-0.8, h5py 3, pyarrow 14-21, lightning 1.8-2.6, transformers 4.30-5, lmdb 1.4.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

# module -> (function or Class.method, index of the path argument, its keyword, kind of access). Kinds: "w" writes a new
# file, "u" updates, "r" reads, "m" the mode is the next argument, "d" a directory that is created and written into,
# "l" the path or bare name of a shared library, "b" a database whose files have suffixes of their own.
PATHS: "Dict[str, List[Tuple[str, int, str, str]]]" = {
    "torch.serialization": [("save", 1, "f", "w"), ("load", 0, "f", "r")],
    "torch.jit._serialization": [("save", 1, "f", "w"), ("load", 0, "f", "r")],
    "safetensors": [("serialize_file", 1, "filename", "w"), ("safe_open", 0, "filename", "r")],
    "h5py._hl.files": [("File.__init__", 1, "name", "m")],
    "sqlite3.dbapi2": [("connect", 0, "database", "u")],
    "sqlite3": [("connect", 0, "database", "u")],
    "pyarrow": [("OSFile", 0, "path", "m"), ("memory_map", 0, "path", "m"), ("create_memory_map", 0, "path", "w")],
    "cv2": [("imwrite", 0, "filename", "w"), ("imread", 0, "filename", "r"), ("VideoWriter", 0, "filename", "w")],
    "torch.utils.tensorboard.writer": [("FileWriter.__init__", 1, "log_dir", "d")],
    "tensorboardX.writer": [("FileWriter.__init__", 1, "logdir", "d")],
    "lmdb": [("open", 0, "path", "d"), ("Environment", 0, "path", "d")],
    "soundfile": [("write", 0, "file", "w"), ("read", 0, "file", "r")],
    "torchvision.io.image": [("write_file", 0, "filename", "w"), ("read_file", 0, "path", "r")],
    "fitsio": [("FITS", 0, "filename", "m")],
    "netCDF4": [("Dataset", 0, "filename", "m")],
    "torch.jit._script": [("RecursiveScriptModule.save", 1, "f", "w"), ("ScriptModule.save", 1, "f", "w")],
    "torch.package.package_exporter": [("PackageExporter.__init__", 1, "f", "w")],
    "torch.package.package_importer": [("PackageImporter.__init__", 1, "file_or_buffer", "r")],
    "torch.export.pt2_archive._package": [
        ("PT2ArchiveWriter.__init__", 1, "archive_path_or_buffer", "w"),
        ("PT2ArchiveReader.__init__", 1, "archive_path_or_buffer", "r"),
    ],
    "torch.profiler.profiler": [
        ("_KinetoProfile.export_chrome_trace", 1, "path", "w"),
        ("_KinetoProfile.export_stacks", 1, "path", "w"),
    ],
    "torch.autograd.profiler": [
        ("profile.export_chrome_trace", 1, "path", "w"),
        ("profile.export_stacks", 1, "path", "w"),
    ],
    "tokenizers": [
        ("Tokenizer.save", 1, "path", "w"),
        ("Tokenizer.from_file", 0, "path", "r"),
        ("models.Model.save", 1, "folder", "d"),
    ],
    "pyarrow.parquet.core": [
        ("ParquetWriter.__init__", 1, "where", "w"),
        ("ParquetFile.__init__", 1, "source", "r"),
        ("read_table", 0, "source", "r"),
    ],
    "pyarrow.feather": [("write_feather", 1, "dest", "w"), ("read_table", 0, "source", "r")],
    "xgboost.core": [("Booster.save_model", 1, "fname", "w"), ("Booster.load_model", 1, "fname", "r")],
    "lightgbm.basic": [("Booster.save_model", 1, "filename", "w")],
    "faiss": [("write_index", 1, "fname", "w"), ("read_index", 0, "fname", "r")],
    "tables.file": [("open_file", 0, "filename", "m")],
    "dbm.gnu": [("open", 0, "filename", "b")],
    "dbm.ndbm": [("open", 0, "filename", "b")],
    "importlib.util": [("spec_from_file_location", 1, "location", "r")],
    "ctypes": [("CDLL.__init__", 1, "name", "l")],
}

_written: "Any" = None
_read: "Any" = None


def _place(value: "Any", mode: str, args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]", at: int) -> "Any":
    if mode == "m":
        asked = args[at + 1] if len(args) > at + 1 else kwargs.get("mode", "r")
        mode = {"r": "r", "w": "w"}.get(str(asked or "r")[:1] + str(asked or "r")[1:].replace("b", ""), "u")
    if mode == "r":
        return _read(value)
    if mode == "l":
        return _read(value) if isinstance(value, str) and "/" in value else value
    if mode == "b":
        for ending in (".db", ".pag", ".dir"):
            if os.path.exists(os.fsdecode(value) + ending):
                _written(os.fsdecode(value) + ending, True)
        return _written(value, True)
    if mode == "u" and value in (":memory:", ""):
        return value
    if mode == "u" and isinstance(value, str) and value.startswith("file:"):
        return _uri(value)
    if mode == "d":
        return _directory(value)
    return _written(value, mode == "u")


def _uri(value: str) -> str:
    """Return an SQLite URI file:PATH?mode=... with its path replaced (sqlite.org/uri.html)."""
    path, mark, query = value[5:].partition("?")
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]
    if not path or path == ":memory:" or "mode=memory" in query or "%" in path:
        return value
    reads = "mode=ro" in query or "immutable=1" in query
    return "file:" + (_read(path) if reads else _written(path, True)) + mark + query


def _directory(value: "Any") -> "Any":
    """Return the shadow path for a directory that a library creates itself and writes into."""
    if value is None or os.path.isdir(value):
        # The library only adds new files to an existing directory, so an empty shadow of the same name is sufficient.
        marker = os.path.join(os.fspath(value), ".slurmwrap") if value is not None else None
        return value if marker is None else os.path.dirname(_written(marker))
    return _written(value)


def _led(plain: "Any", at: int, keyword: str, mode: str) -> "Any":
    """Return a wrapper of `plain` that replaces its path argument by one to which the trial may write."""

    def call(*args: "Any", **kwargs: "Any") -> "Any":
        try:
            if len(args) > at:
                args = args[:at] + (_place(args[at], mode, args, kwargs, at),) + args[at + 1 :]
            elif keyword in kwargs:
                kwargs[keyword] = _place(kwargs[keyword], mode, args, kwargs, at)
        except Exception:
            pass
        return plain(*args, **kwargs)

    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__signature__"):
        try:
            setattr(call, name, getattr(plain, name))
        except (AttributeError, TypeError):
            pass
    call.__dict__.update(
        {k: v for k, v in getattr(plain, "__dict__", {}).items() if isinstance(k, str) and not isinstance(plain, type)}
    )
    call.__wrapped__ = plain
    return call


def _lead(module: "Any", rows: "List[Tuple[str, int, str, str]]") -> None:
    for path, at, keyword, mode in rows:
        owner, _, name = path.rpartition(".")
        holder = module
        for part in owner.split(".") if owner else ():
            holder = getattr(holder, part, None)
        plain = getattr(holder, name, None)
        if plain is None or getattr(plain, "__wrapped__", None) is not None and hasattr(plain, "_slurmwrap"):
            continue
        led = _led(plain, at, keyword, mode)
        led._slurmwrap = True
        bound = isinstance(getattr(holder, "__dict__", {}).get(name), (staticmethod, classmethod))
        setattr(holder, name, staticmethod(led) if bound else led)


def _one_device(module: "Any") -> None:
    """Limit Lightning's connectors to the trial's GPUs on one node, for example for Trainer(devices=8, num_nodes=4)."""
    for name in ("AcceleratorConnector", "_AcceleratorConnector", "_Connector"):
        kind = getattr(module, name, None)
        if kind is not None:
            kind.__init__ = _with_one(kind.__init__)


def _with_one(plain: "Any") -> "Any":
    def __init__(self: "Any", *args: "Any", **kwargs: "Any") -> None:
        try:
            args, kwargs = _one(plain, args, kwargs)
        except Exception:
            pass
        plain(self, *args, **kwargs)

    __init__.__wrapped__, __init__.__doc__ = plain, plain.__doc__
    return __init__


def _one(plain: "Any", args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]") -> "Tuple[Tuple[Any, ...], Dict[str, Any]]":
    gpus = int(os.environ.get("SLURMWRAP_TRIAL_GPUS") or 1)
    names = plain.__code__.co_varnames[1 : plain.__code__.co_argcount]
    given = dict(zip(names, args))
    given.update(kwargs)
    if "num_nodes" in given:
        given["num_nodes"] = 1
    for name in ("devices", "gpus"):
        if _count(given.get(name)) > gpus:
            given[name] = gpus if not isinstance(given[name], (list, tuple)) else list(range(gpus))
    return (), given


def _count(devices: "Any") -> int:
    if isinstance(devices, (list, tuple)):
        return max([len(devices)] + [d + 1 for d in devices if isinstance(d, int)])
    if isinstance(devices, str) and "," in devices:
        return len([d for d in devices.split(",") if d.strip()])
    try:
        return int(devices)
    except (TypeError, ValueError):
        return 0


def _no_requeue(module: "Any") -> None:
    """Disable Lightning's checks of --ntasks-per-node and --nodes and its requeueing, which are for the real job."""
    kind = module.SLURMEnvironment
    kind.validate_settings = lambda self, num_devices, num_nodes: None
    kind._validate_srun_variables = staticmethod(lambda: None)
    kind._validate_srun_used = staticmethod(lambda: None)
    plain = kind.__init__

    def __init__(self: "Any", *args: "Any", **kwargs: "Any") -> None:
        plain(self, *args, **kwargs)
        self.auto_requeue = False

    kind.__init__ = __init__


def _no_push(module: "Any") -> None:
    """Keep the Trainer of transformers from publishing anything of a trial."""
    kind = module.Trainer

    def init_hf_repo(self: "Any", *args: "Any", **kwargs: "Any") -> None:
        self.hub_model_id = getattr(self.args, "hub_model_id", None)

    kind.init_hf_repo = init_hf_repo
    kind.push_to_hub = kind._push_from_checkpoint = lambda self, *args, **kwargs: None


def _no_upload(module: "Any") -> None:
    for name in ("PushToHubMixin", "ModelHubMixin"):
        kind = getattr(module, name, None)
        if kind is not None:
            kind.push_to_hub = lambda self, *args, **kwargs: None


def _disabled(module: "Any") -> None:
    """Disable wandb.init(mode="online") and swanlab.init(mode="cloud"), whose argument overrides the environment."""
    plain = module.init

    def init(*args: "Any", **kwargs: "Any") -> "Any":
        if "mode" in kwargs:
            kwargs["mode"] = "disabled"
        return plain(*args, **kwargs)

    init.__wrapped__, init.__doc__ = plain, plain.__doc__
    module.init = init


def _own_server(module: "Any") -> None:
    """Ignore mlflow.set_tracking_uri("http://..."), so that MLFLOW_TRACKING_URI remains in force."""
    module.set_tracking_uri = lambda uri=None: None


def _no_pip(module: "Any") -> None:
    """End the trial at `python -m pip install`: its files would go to the shadow tree, where no import finds them."""
    guard = sys.modules["slurmwrap_guard"]
    guard.ends_unless_free("pip install", sys.prefix)


def _children(module: "Any") -> None:
    """Patch subprocess so that child processes find the files that this program wrote."""
    if _written is not None:
        sys.modules["slurmwrap_children"].hook(module, sys.modules["slurmwrap_guard"].for_child)


FRAMEWORKS: "Dict[str, Callable[[Any], None]]" = {
    "subprocess": _children,
    "wandb.sdk.wandb_init": _disabled,
    "swanlab.data.sdk": _disabled,
    "mlflow.tracking._tracking_service.utils": _own_server,
    "pip._internal.commands.install": _no_pip,
    "pip._internal.commands.uninstall": _no_pip,
    "lightning.pytorch.trainer.connectors.accelerator_connector": _one_device,
    "pytorch_lightning.trainer.connectors.accelerator_connector": _one_device,
    "lightning.fabric.connector": _one_device,
    "lightning_fabric.connector": _one_device,
    "lightning.fabric.plugins.environments.slurm": _no_requeue,
    "lightning_fabric.plugins.environments.slurm": _no_requeue,
    "transformers.trainer": _no_push,
    "transformers.utils.hub": _no_upload,
    "huggingface_hub.hub_mixin": _no_upload,
}


class _Finder(object):
    """A finder on sys.meta_path that waits for the modules of both tables and patches each after its execution."""

    def __init__(self) -> None:
        self.busy: "Any" = set()

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if (name not in PATHS and name not in FRAMEWORKS) or name in self.busy:
            return None
        self.busy.add(name)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    return _hooked(spec)
        except Exception:
            return None
        finally:
            self.busy.discard(name)
        return None


class _Made(object):
    """A finder, the last on sys.meta_path, for modules that the program wrote itself.

    Python's import does not use the replaced open and would not find them in the shadow tree.
    """

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        try:
            place = sys.modules["slurmwrap_guard"].shadowed
            folders = [found for found in map(place, sys.path if path is None else path) if found]
            finders = [f for f in sys.meta_path if getattr(f, "__name__", "") == "PathFinder"] if folders else []
            return finders[0].find_spec(name, folders) if finders else None
        except Exception:
            return None


def _hooked(spec: "Any") -> "Any":
    execute = spec.loader.exec_module

    def exec_module(module: "Any") -> None:
        execute(module)
        _change(module, spec.name)

    spec.loader.exec_module = exec_module
    return spec


def _change(module: "Any", name: str) -> None:
    try:
        if name in FRAMEWORKS:
            FRAMEWORKS[name](module)
        elif _written is not None:
            _lead(module, PATHS[name])
    except Exception:
        pass


def install(written: "Optional[Callable[..., Any]]", read: "Optional[Callable[..., Any]]") -> None:
    """Install the finders and patch modules that are already imported.

    `written`, `read`: the functions of slurmwrap_guard; None if file accesses are not redirected.
    """
    global _written, _read
    _written, _read = written, read
    for name in set(PATHS) | set(FRAMEWORKS):
        if name in sys.modules:
            _change(sys.modules[name], name)
    sys.meta_path.insert(0, _Finder())
    if written is not None:
        sys.meta_path.append(_Made())
