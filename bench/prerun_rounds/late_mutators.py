"""Operators for code that runs late: saving, schedulers, validation, metrics, summaries, resuming. Pure.

They complete mutators.py, whose operators are planted in late lines as well. GENERAL_OPERATORS leaves out those that
concern imports, options, syntax, the number of classes, the loss's graph and layers, which fail before the third step,
devices, which a machine without a GPU cannot show, and an exit without a message.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator

from prerun_rounds.edits import Edit, PythonSource, misspell
from prerun_rounds.mutators import OPERATORS, Operator, find_calls, get_called_name

GENERAL_OPERATORS = tuple(
    name
    for name in OPERATORS
    if name
    not in (
        "layer_size", "device", "import_name", "missing_import", "option", "silent_exit", "label_range",
        "detached_loss", "allocation", "syntax",
    )
)  # fmt: skip
_SCHEDULER = re.compile(r"sched|lr_decay|plateau", re.IGNORECASE)
_METRIC = re.compile(
    r"metric|accurac|^acc|score|^f1|auc|confusion|psnr|ssim|dice|iou|^mae$|^mse$|report", re.IGNORECASE
)
_NEVER_SHADOWED = frozenset(
    {"super", "len", "int", "float", "sum", "max", "min", "str", "list", "torch", "np", "os", "self"}
)
_SAVES = ("save", "savefig", "save_image", "savez", "savetxt", "dump", "to_csv", "save_weights", "savemat", "imsave")
_MAKES = ("makedirs", "mkdir")
_OTHER_NAMES = {
    "val": ("valid", "validation", "dev"), "valid": ("val", "validation"), "validation": ("val", "valid"),
    "validate": ("evaluate", "run_validation"), "evaluate": ("validate", "evaluate_model"), "eval": ("evaluate",),
    "test": ("eval", "testing"), "loader": ("dataloader", "dl"), "dataloader": ("loader", "dl"), "dl": ("loader",),
    "save": ("write", "store"), "dataset": ("data", "ds"), "acc": ("accuracy",), "accuracy": ("acc",),
    "metrics": ("metric", "scores"), "loss": ("losses", "avg_loss"), "best": ("top",), "epoch": ("ep", "epoch_idx"),
    "checkpoint": ("ckpt",), "ckpt": ("checkpoint",), "scheduler": ("lr_scheduler", "sched"),
}  # fmt: skip


def call_scheduler_wrongly(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A scheduler's step() with an argument that it does not have, or without the one that it needs."""
    for call, name in find_calls(source):
        if name != "step" or not isinstance(call.func, ast.Attribute):
            continue
        if not _SCHEDULER.search(source.segment(call.func.value)):
            continue
        if call.args or call.keywords:
            yield source.replace_node("scheduler_argument", call, f"{source.segment(call.func)}()")
        else:
            wrong = rng.choice(["epoch, loss", "metrics=0.0", "0, 0.0", "epoch=0, val_loss=0.0"])
            yield source.replace_node("scheduler_argument", call, f"{source.segment(call.func)}({wrong})")


def misspell_saved_key(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A key of a checkpoint that is written under another name than it is read."""
    for node in source.nodes:
        is_dict_call = isinstance(node, ast.Call) and get_called_name(node) == "dict"
        if not (isinstance(node, ast.Dict) or is_dict_call):
            continue
        if not re.search(r"state_dict|optimizer|weights", source.segment(node)):
            continue
        for key in node.keys if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and len(key.value) > 2:
                yield source.replace_node("checkpoint_key", key, repr(misspell(key.value, rng)))
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg and len(keyword.arg) > 2:
                start, _ = source.span(keyword)
                yield source.replace("checkpoint_key", start, start + len(keyword.arg), misspell(keyword.arg, rng))


def misplace_module(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """state_dict() of `.module` of a model that is not wrapped, or of one name too few."""
    for call, name in find_calls(source):
        if name not in ("state_dict", "save_pretrained") or not isinstance(call.func, ast.Attribute):
            continue
        owner = source.segment(call.func.value)
        if not re.fullmatch(r"[\w.]+", owner):
            continue
        wrong = owner.removesuffix(".module") + ".modules" if owner.endswith(".module") else f"{owner}.module"
        yield source.replace_node("module_attribute", call.func.value, wrong)


def save_to_missing_directory(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A file that is written to a directory that nobody has made."""
    folder = rng.choice(["best_model", "snapshots", "results_final"])
    for call, name in find_calls(source):
        path: ast.AST | None = None
        if name in _SAVES and isinstance(call.func, ast.Attribute):
            owner = source.segment(call.func.value)
            at = 1 if owner == "torch" or (owner in ("vutils", "utils") and name == "save_image") else 0
            if name != "dump" and len(call.args) > at:
                path = call.args[at]
        elif name == "open" and len(call.args) >= 2 and re.search("[wa]", source.segment(call.args[1])):
            path = call.args[0]
        if path is not None and not isinstance(path, ast.Starred):
            yield source.replace_node("save_directory", path, f'"{folder}/" + str({source.segment(path)})')


def forget_directory(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """The directory of the output is not made. The statement may run early; what it breaks runs late."""
    for node in source.nodes:
        called = get_called_name(node.value) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else ""
        if called in _MAKES and (edit := source.remove("missing_directory", node)):
            yield edit


def break_metric(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A metric with an argument of another length or shape, or over another axis."""
    for call, name in find_calls(source):
        if _METRIC.search(name) and call.args and not isinstance(call.args[0], (ast.Starred, ast.Constant)):
            text = source.segment(call.args[0])
            if re.fullmatch(r"[\w.]+", text):
                yield source.replace_node("metric", call.args[0], rng.choice([f"{text}[:-1]", f"{text}[None]"]))
        if name in ("argmax", "max", "topk", "softmax", "sum", "mean"):
            for node in [*call.args[-1:], *(k.value for k in call.keywords if k.arg in ("dim", "axis"))]:
                if isinstance(node, ast.Constant) and type(node.value) is int and node.value in (0, 1):
                    yield source.replace_node("metric", node, str(node.value + 3))


def use_other_name(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """Another usual name of the loader, dataset, function or value than the program has."""
    for node in source.nodes:
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        parts = node.id.split("_")
        known = [at for at, part in enumerate(parts) if part.lower() in _OTHER_NAMES]
        if not known:
            continue
        at = rng.choice(known)
        wrong = "_".join([*parts[:at], rng.choice(_OTHER_NAMES[parts[at].lower()]), *parts[at + 1 :]])
        if wrong not in source.names and wrong != node.id:
            yield source.replace_node("other_name", node, wrong)


def break_format(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A format that does not fit its value, or a value that is missing."""
    for node in source.nodes:
        if isinstance(node, (ast.JoinedStr, ast.Constant)):
            text = source.segment(node)
            if not isinstance(node, ast.JoinedStr) and not isinstance(node.value, str):  # type: ignore[redundant-expr]
                continue
            found = list(re.finditer(r":[<>]?(\d*)\.\d+[fe]\}", text))
            if found:
                one = rng.choice(found)
                new = text[: one.start()] + f":{one[1]}d}}" + text[one.end() :]
                yield source.replace_node("format", node, new)
        elif isinstance(node, ast.Call) and get_called_name(node) == "format" and len(node.args) >= 2:
            yield source.replace("format", source.span(node.args[-2])[1], source.span(node.args[-1])[1], "")
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mod)
            and isinstance(node.left, ast.Constant)
            and isinstance(node.left.value, str)
            and isinstance(node.right, ast.Tuple)
            and len(node.right.elts) >= 2
        ):
            before, last = node.right.elts[-2:]
            end = "," if len(node.right.elts) == 2 else ""
            yield source.replace("format", source.span(before)[1], source.span(last)[1], end)


def change_nesting(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A checkpoint that is loaded whole where a part of it is meant, or the other way round."""
    for call, name in find_calls(source):
        if name not in ("load_state_dict", "restore", "load_weights") or not call.args:
            continue
        node = call.args[0]
        if isinstance(node, ast.Subscript):
            yield source.replace_node("checkpoint_nesting", node, source.segment(node.value))
        else:
            key = rng.choice(["state_dict", "model", "model_state_dict"])
            yield source.replace_node("checkpoint_nesting", node, f'{source.segment(node)}["{key}"]')


def keep_gradient(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """numpy() of a tensor that has a gradient or is on another device."""
    for call, name in find_calls(source):
        if name == "detach" and isinstance(call.func, ast.Attribute) and not call.args:
            yield source.replace_node("missing_detach", call, source.segment(call.func.value))
        elif name == "no_grad" and isinstance(source.parents[call], ast.withitem):
            yield source.replace_node("missing_detach", call, "torch.enable_grad()")


def unpack_result(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """Two results of a function that returns one, or one element of a single result."""
    for node in source.nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Call):
            target = node.targets[0]
            if isinstance(target, (ast.Name, ast.Attribute)):
                yield source.replace_node("unpacked_result", target, f"{source.segment(target)}, _")


def rebind_list(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """x = x.append(y), which is None from then on."""
    for node in source.nodes:
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        owner = source.segment(call.func.value)
        if call.func.attr in ("append", "update", "extend", "reset") and re.fullmatch(r"[A-Za-z_][\w.\[\]'\"]*", owner):
            yield source.replace_node("rebound_list", node, f"{owner} = {source.segment(call)}")


def shadow_name(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A result that has, wherever it is used, the name of the function or object that made it and is needed again."""
    for node in source.nodes:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if not isinstance(target, ast.Name) or not isinstance(node.value, ast.Call):  # type: ignore[attr-defined]
            continue
        owner = node.value.func  # type: ignore[attr-defined]
        while isinstance(owner, ast.Attribute):
            owner = owner.value
        if not isinstance(owner, ast.Name) or owner.id in _NEVER_SHADOWED or owner.id == target.id:
            continue
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        scope = next((one for one in source.ancestors(node) if isinstance(one, functions)), source.tree)
        uses = [one for one in ast.walk(scope) if isinstance(one, ast.Name) and one.id == target.id]
        spans = sorted(map(source.span, uses))
        in_texts = any(isinstance(one, ast.JoinedStr) for use in uses for one in source.ancestors(use))
        if spans[0] != source.span(target) or in_texts:
            continue
        pieces, at = [], spans[0][0]
        for start, stop in spans:
            pieces += [source.data[at:start].decode(), owner.id]
            at = stop
        yield source.replace("shadowed_name", spans[0][0], spans[-1][1], "".join(pieces))


LATE_OPERATORS: dict[str, Operator] = {
    "scheduler_argument": call_scheduler_wrongly,
    "checkpoint_key": misspell_saved_key,
    "module_attribute": misplace_module,
    "save_directory": save_to_missing_directory,
    "missing_directory": forget_directory,
    "metric": break_metric,
    "other_name": use_other_name,
    "format": break_format,
    "checkpoint_nesting": change_nesting,
    "missing_detach": keep_gradient,
    "unpacked_result": unpack_result,
    "rebound_list": rebind_list,
    "shadowed_name": shadow_name,
}
# Planted in one stage, but what they break runs in another.
SHOWS_WHEN_LOADED = frozenset({"checkpoint_key"})
SHOWS_WHEN_SAVED = frozenset({"missing_directory"})
SHOWS_IN_NEXT_EPOCH = frozenset({"rebound_list", "shadowed_name"})


def find_late_candidates(operator: str, source: PythonSource, rng: random.Random) -> list[Edit]:
    """Return the operator's candidates in the whole file, in the order of its lines. `operator`: general or late."""
    found = dict.fromkeys((LATE_OPERATORS.get(operator) or OPERATORS[operator])(source, rng))
    return sorted((edit for edit in found if edit.old != edit.new), key=lambda edit: edit.line)
