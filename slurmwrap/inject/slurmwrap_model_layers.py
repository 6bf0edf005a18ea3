"""Record how large the parameters of each layer are, and how long its forward pass takes. Only in a pre-run.

slurmwrap_torch imports this module at the first step of an optimizer. The layers are found once, among the objects that
Python's garbage collector knows: a layer is a module that owns parameters of an optimizer. During the next step two
hooks on all modules take the times; then they are removed. The file `<pid>.layers` of the counter has one line per
layer in the order in which they ran: bytes of its parameters that get gradients, bytes of the largest of them,
microseconds of its forward pass (-1: not measured), its class, and its path in the model. Functions between two layers
count for the first of the two. More than MOST layers are summed by the beginnings of their paths. Python 3.6 syntax,
standard library; the callers ignore all exceptions.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OF_SLURMWRAP = True
MOST = 200
LONGEST_NAME = 120
OTHERS = "(others)"
# Parts of a path that wrappers add.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_PARALLEL = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine")


class Layers(object):
    """The layers of the models of this process."""

    def __init__(self, counter: "Any", sizes: "Any") -> None:
        self.counter, self.sizes = counter, sizes
        self.tensors = {}  # type: Any  # id -> parameter of an optimizer
        self.optimizers = 0
        self.rows = []  # type: Any
        self.row_of = {}  # type: Any  # id of a module -> its row
        self.handles = []  # type: Any
        self.depth = self.order = self.thread = 0
        self.over = False
        self.since, self.current = 0.0, None  # type: Any

    def begin(self, tensors: "Any") -> None:
        """Find the layers of the parameters `tensors` of one more optimizer, and time the next step."""
        if self.over:
            return
        self.optimizers += 1
        self.tensors.update((id(tensor), tensor) for tensor in tensors if tensor.requires_grad)
        # A layer all of whose parameters belong to an earlier one (tied weights) has 0 bytes, but a time.
        found = [one for one in self._find() if one[2] is not None]
        rest = set(self.tensors).difference(id(tensor) for _, _, owned, _ in found for tensor in owned)
        if rest:
            found.append((OTHERS, "", [self.tensors[one] for one in self.tensors if one in rest], None))
        self.rows = []
        for path, kind, owned, module in found:
            sizes = [size for tensor in owned for size in self.sizes(tensor)]
            row = {"path": path, "kind": kind, "bytes": sum(sizes), "largest": max(sizes or [0]), "s": 0.0, "order": None}
            self.rows.append(row)
            if module is not None:
                self.row_of[id(module)] = row
        self.write()
        self._watch()

    def step(self, count: int) -> None:
        """Note step `count` of an optimizer. With several optimizers, the times of two steps are taken."""
        if self.over or count < (2 if self.optimizers == 1 else 3):
            return
        if self.handles:
            self.stop()
            self.write()
        # Keep no model alive.
        self.over, self.tensors, self.rows, self.row_of, self.current = True, {}, [], {}, None

    def stop(self) -> None:
        """Remove the hooks."""
        handles, self.handles = self.handles, []
        for handle in handles:
            handle.remove()

    def _find(self) -> "Any":
        """Yield (path, class, its own parameters, module) of each module of models that have parameters of an optimizer.

        None instead of parameters: it owns none.
        """
        import gc

        kind = sys.modules["torch.nn.modules.module"].Module
        modules = [thing for thing in gc.get_objects() if kind in type(thing).__mro__]
        inner = set(id(child) for module in modules for child in _children(module).values())
        seen = set()  # type: Any
        trees = []
        for root in modules:
            if id(root) not in inner:
                tree = list(self._walk(root, "", seen))
                if any(owned for _, _, owned, _ in tree):
                    trees.append((root, tree))
        for root, tree in trees:
            # With several models, such as those of a GAN, the class names the model.
            prefix = type(root).__name__ if len(trees) > 1 else ""
            for path, name, owned, module in tree:
                yield ".".join(part for part in (prefix, path) if part) or name, name, owned, module

    def _walk(self, root: "Any", path: str, seen: "Any") -> "Any":
        waiting = [(path, root)]
        while waiting:
            path, module = waiting.pop()
            own = [p for p in (module.__dict__.get("_parameters") or {}).values() if id(p) in self.tensors]
            # A parameter of two layers counts for the first one.
            owned = [p for p in own if id(p) not in seen] if own else None
            seen.update(id(p) for p in own)
            yield path, type(module).__name__, owned, module
            parallel = type(module).__name__ in _PARALLEL
            children = [
                (path if name in _WRAPPERS or (parallel and name == "module") else (path + "." + name).lstrip("."), child)
                for name, child in _children(module).items()
            ]
            waiting.extend(reversed(children))

    def _watch(self) -> None:
        """Time the modules of the next step, unless hooks would make torch.compile compile its graphs again."""
        self.stop()
        compiler = sys.modules.get("torch._dynamo.convert_frame")
        if getattr(compiler, "FRAME_COUNTER", 0) or not self.row_of:
            return
        import _thread

        hooks = sys.modules["torch.nn.modules.module"]
        self.thread, self.identify = _thread.get_ident(), _thread.get_ident
        self.depth, self.current = 0, None
        self.handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave),
        ]

    def _enter(self, module: "Any", _: "Any") -> None:
        try:
            if not self._counts():
                return
            self.depth += 1
            row = self.row_of.get(id(module))
            if row is not None:
                self._note(row)
        except Exception:
            self.stop()

    def _leave(self, module: "Any", _: "Any", __: "Any") -> None:
        try:
            if not self._counts():
                return
            self.depth -= 1
            if self.depth <= 0:
                self._note(None)
        except Exception:
            self.stop()

    def _counts(self) -> bool:
        """Return whether this is a forward pass of the training. A checkpointed layer has one in its backward pass."""
        torch = sys.modules["torch"]
        backward = getattr(torch._C, "_current_graph_task_id", None)
        return self.identify() == self.thread and torch.is_grad_enabled() and (backward is None or backward() == -1)

    def _note(self, row: "Any") -> None:
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized():
            if cuda.is_current_stream_capturing():
                return
            cuda.synchronize()
        now = self.counter.clock()
        if self.current is not None:
            self.current["s"] += now - self.since
        self.current, self.since = row, now
        if row is not None and row["order"] is None:
            row["order"], self.order = self.order, self.order + 1

    def write(self) -> None:
        """Write the file of the layers."""
        timed = any(row["order"] is not None for row in self.rows)
        rows = sorted(self.rows, key=lambda row: len(self.rows) if row["order"] is None else row["order"])
        lines = [
            "%d %d %d %s %s\n"
            % (row["bytes"], row["largest"], round(row["s"] * 1e6) if timed else -1, _plain(row["kind"]), _plain(row["path"]))
            for row in fold(rows)
        ]
        with open(self.counter.path + ".layers.new", "w") as stream:
            stream.write("".join(lines))
        os.rename(self.counter.path + ".layers.new", self.counter.path + ".layers")


def fold(rows: "Any") -> "Any":
    """Return at most MOST rows: summed by the longest beginnings of the paths that are few enough."""
    longest = max([len(row["path"].split(".")) for row in rows] or [0])
    for depth in range(longest, 0, -1):
        names = [".".join(row["path"].split(".")[:depth]) for row in rows]
        if len(set(names)) <= MOST:
            return _sum_by(names, rows)
    large = set(id(row) for row in sorted(rows, key=lambda row: -row["bytes"])[: MOST - 1])
    return _sum_by([str(at) if id(row) in large else OTHERS for at, row in enumerate(rows)], rows)


def _sum_by(names: "Any", rows: "Any") -> "Any":
    found = {}  # type: Any
    for name, row in zip(names, rows):
        known = found.get(name)
        if known is None:
            found[name] = dict(row, path=OTHERS if name == OTHERS else row["path"] if name.isdigit() else name)
            continue
        known["kind"] = known["kind"] if known["kind"] == row["kind"] else ""
        known["bytes"] += row["bytes"]
        known["largest"] = max(known["largest"], row["largest"])
        known["s"] += row["s"]
    return list(found.values())


def _children(module: "Any") -> "Any":
    children = module.__dict__.get("_modules") or {}
    return dict((name, child) for name, child in children.items() if child is not None)


def _plain(text: str) -> str:
    return "".join(c if c.isalnum() and c < "\x7f" or c in "._-()" else "_" for c in text[:LONGEST_NAME]) or "-"
