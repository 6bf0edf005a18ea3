"""Operators that plant one bug in a Python file, as researchers make them. Pure; only ast and the standard library.

Each operator yields candidate edits of one file. Where an operator has a choice, it draws from the random generator
that it is given, so that the same seed gives the same edits. No operator depends on how slurmwrap finds a bug.
"""

from __future__ import annotations

import ast
import io
import itertools
import random
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence

from prerun_rounds.edits import Edit, PythonSource, misspell

Operator = Callable[[PythonSource, random.Random], Iterator[Edit]]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LAYERS = _words(
    """
    Linear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Embedding LSTM GRU RNN LayerNorm RMSNorm
    BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm2d GroupNorm MultiheadAttention Dense DenseGeneral Conv Conv2D
    Conv1D MultiHeadAttention GCNConv GATConv SAGEConv Input
    """
)
LOSSES = _words(
    """
    CrossEntropyLoss MSELoss L1Loss SmoothL1Loss HuberLoss BCELoss BCEWithLogitsLoss NLLLoss KLDivLoss cross_entropy
    mse_loss l1_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits nll_loss
    """
)
CLASS_COUNTS = re.compile(
    r"(?:.*_)?(?:num_classes|n_classes|nclass|num_labels|n_labels|class_num|vocab_size|n_vocab|nb_classes|num_embeddings"
    r"|out_features|output_dim|ntoken|nclasses|classes)"
)
CONVERSIONS = _words("long float int half double bool astype type")
CREATED = _words("zeros ones empty randn rand full")
FORGOTTEN = _words(
    """
    __init__ zero_grad backward step makedirs mkdir manual_seed build compile prepare reset init_process_group
    set_device load_state_dict setup to cuda append update
    """
)
PATH_LIKE = re.compile(
    r"[\w.~-]*/[\w./-]*\w|[\w-]+\.(?:csv|json|jsonl|ya?ml|txt|pt|pth|npy|npz|pkl|png|jpg|h5|wav|parquet)"
)
SHAPED = _words("view reshape permute transpose unsqueeze squeeze flatten expand repeat")
_LIBRARIES = ("torch", "np", "numpy", "jnp", "tf")
_OPTION_RECORDS = ("args", "opt", "opts", "flags", "FLAGS", "cfg", "config", "options")
_ENVIRONMENT_NAMES = ("DATA_ROOT", "DATASET_DIR", "PROJECT_HOME", "SCRATCH_DIR")
# More bytes than an address space has, so that an allocation fails at once and takes no memory from other programs.
_FAR_TOO_LARGE = "10**15"


def find_calls(source: PythonSource) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls with the last part of the called name."""
    for node in source.nodes:
        if isinstance(node, ast.Call):
            yield node, get_called_name(node)


def get_called_name(call: ast.Call) -> str:
    """Return the last part of the called name; "" if it has none."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_int(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_plain(node: ast.AST) -> bool:
    return not isinstance(node, ast.Starred) and not isinstance(node, ast.GeneratorExp)


# --- shapes -----------------------------------------------------------------------------------------------------------


def change_layer_size(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A size or channel count of a layer."""
    for call, name in find_calls(source):
        if name not in LAYERS:
            continue
        sizes = [*call.args[:2], *(k.value for k in call.keywords if (k.arg or "").startswith(("in_", "out_", "num_")))]
        for node in sizes:
            text = source.segment(node)
            if _is_int(node):
                new = rng.choice([str(2 * int(text)), str(int(text) + 1), str(max(1, int(text) // 2))])
                if new != text:
                    yield source.replace_node("layer_size", node, new)
            elif isinstance(node, (ast.Name, ast.Attribute, ast.BinOp, ast.Subscript)):
                yield source.replace_node(
                    "layer_size", node, rng.choice([f"{text} * 2", f"{text} + 1", f"{text} // 2"])
                )


def change_reshape(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A view, reshape, permute, transpose or (un)squeeze: another number, another order, or left out."""
    for call, name in find_calls(source):
        if name not in SHAPED or not isinstance(call.func, ast.Attribute):
            continue
        if not isinstance(call.func.value, ast.Name) or call.func.value.id not in ("torch", "np", "jnp", "F"):
            yield source.replace_node("reshape", call, source.segment(call.func.value))
        for node in call.args:
            if _is_int(node) and name != "squeeze":
                yield source.replace_node("reshape", node, str(int(source.segment(node)) + 1))
        if len(call.args) >= 2 and name in ("view", "reshape", "permute") and all(map(_is_plain, call.args)):
            first, second = rng.sample(call.args, 2)
            yield from _swap(source, "reshape", first, second)


def _swap(source: PythonSource, operator: str, one: ast.AST, other: ast.AST) -> Iterator[Edit]:
    (start, stop), (begin, end) = sorted((source.span(one), source.span(other)))
    left, right = source.data[start:stop], source.data[begin:end]
    if left != right:
        yield source.replace(operator, start, end, (right + source.data[stop:begin] + left).decode())


# --- types, devices ---------------------------------------------------------------------------------------------------


def change_dtype(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A conversion that is missing or converts to another type."""
    others = {"long": "float", "float": "double", "int": "float", "float32": "float64", "int64": "float32"}
    others |= {"float64": "float16", "int32": "float32", "bool": "float32"}
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CONVERSIONS:
            if not isinstance(node.func.value, ast.Name) or node.func.value.id not in ("torch", "np", "jnp"):
                yield source.replace_node("dtype", node, source.segment(node.func.value))
            if not node.args and node.func.attr in others:
                yield source.replace_node(
                    "dtype", node, f"{source.segment(node.func.value)}.{others[node.func.attr]}()"
                )
        elif isinstance(node, ast.Attribute) and node.attr in others and source.segment(node.value) in _LIBRARIES:
            yield source.replace_node("dtype", node, f"{source.segment(node.value)}.{others[node.attr]}")


def change_device(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A tensor or module that stays where it is, or goes to a device that does not exist."""
    for call, name in find_calls(source):
        if not isinstance(call.func, ast.Attribute) or name not in ("to", "cuda"):
            continue
        yield source.replace_node("device", call, source.segment(call.func.value))
        if call.args and "device" in source.segment(call.args[0]):
            yield source.replace_node("device", call.args[0], '"cuda:9"')
    for node in source.nodes:
        if isinstance(node, ast.Constant) and node.value in ("cuda", "cuda:0", "cpu"):
            yield source.replace_node("device", node, '"cuda:9"' if node.value != "cpu" else '"gpu"')


# --- names ------------------------------------------------------------------------------------------------------------


def misspell_name(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A misspelt variable, function or class."""
    for node in source.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and len(node.id) >= 3:
            wrong = misspell(node.id, rng)
            if wrong not in source.names and wrong.isidentifier():
                yield source.replace_node("name", node, wrong)


def misspell_attribute(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A misspelt attribute or method."""
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and len(node.attr) >= 3:
            wrong = misspell(node.attr, rng)
            if wrong not in source.names:
                _, stop = source.span(node)
                yield source.replace("attribute", stop - len(node.attr.encode()), stop, wrong)


def misspell_import(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A misspelt module, or a name that the module does not have."""
    for node in source.nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if len(alias.name) > 2:
                    start, _ = source.span(alias)
                    stop = start + len(alias.name.encode())
                    yield source.replace("import_name", start, stop, misspell(alias.name, rng))


def remove_import(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """An import that is missing."""
    for node in source.nodes:
        imports = isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") != "__future__"
        if imports and (edit := source.remove("missing_import", node)):
            yield edit


# --- keys, options, paths ---------------------------------------------------------------------------------------------


def misspell_key(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A wrong key of a dict, a batch or a configuration."""
    for node in source.nodes:
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        key = node.slice
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and len(key.value) > 1:
            yield source.replace_node("key", key, repr(misspell(key.value, rng)))


def change_option(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """An option of the program that is renamed, has another type, or is read under another name."""
    for call, name in find_calls(source):
        if name not in ("add_argument", "option", "DEFINE_string", "DEFINE_integer", "DEFINE_float"):
            continue
        for node in call.args:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.lstrip("-")) > 2:
                dashes = node.value[: len(node.value) - len(node.value.lstrip("-"))]
                wrong = dashes + misspell(node.value.lstrip("-"), rng)
                yield source.replace_node("option", node, repr(wrong))
        for keyword in call.keywords:
            if keyword.arg == "type" and source.segment(keyword.value) in ("int", "float"):
                yield source.replace_node("option", keyword.value, "str")
    for attribute in source.nodes:
        if not isinstance(attribute, ast.Attribute) or not isinstance(attribute.ctx, ast.Load):
            continue
        wrong = misspell(attribute.attr, rng)
        if len(attribute.attr) > 2 and wrong not in source.names and source.segment(attribute.value) in _OPTION_RECORDS:
            _, stop = source.span(attribute)
            yield source.replace("option", stop - len(attribute.attr.encode()), stop, wrong)


def misspell_keyword(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A keyword that the called function does not have."""
    for call, name in find_calls(source):
        if name in ("dict", "add_argument"):
            continue
        for keyword in call.keywords:
            if keyword.arg and len(keyword.arg) > 2:
                start, _ = source.span(keyword)
                yield source.replace("keyword", start, start + len(keyword.arg), misspell(keyword.arg, rng))


def find_paths(source: PythonSource) -> Iterator[tuple[ast.AST, str]]:
    """Yield the strings that look like a path, with their value; without prefix (r"", b"") and in one part."""
    for node in source.nodes:
        path = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if PATH_LIKE.fullmatch(path) and re.fullmatch(r"'[^'\n]*'|\"[^\"\n]*\"", source.segment(node)):
            yield node, path


def change_path(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A path of a file or directory that is not there."""
    for node, path in find_paths(source):
        yield source.replace_node("path", node, repr(make_wrong_path(path, rng)))


def make_wrong_path(path: str, rng: random.Random) -> str:
    """Return a path that differs in one part or in its directory."""
    parts = path.split("/")
    at = rng.choice([i for i, part in enumerate(parts) if part.strip(".~")])
    misspelt = "/".join([*parts[:at], misspell(parts[at], rng), *parts[at + 1 :]])
    return rng.choice([misspelt, f"../{path}" if not path.startswith(("/", "~")) else misspelt])


def read_environment(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """An environment variable that no one sets."""
    imported = any(isinstance(n, ast.Import) and any(a.name == "os" for a in n.names) for n in source.tree.body)
    for node, path in find_paths(source) if imported else ():
        variable = rng.choice(_ENVIRONMENT_NAMES)
        yield source.replace_node("environment", node, f'os.environ["{variable}"] + "/" + {path!r}')
    for node, _ in find_calls(source):
        if source.segment(node.func) in ("os.environ.get", "os.getenv") and node.args:
            yield source.replace_node("environment", node, f"os.environ[{source.segment(node.args[0])}]")


# --- calls ------------------------------------------------------------------------------------------------------------


def remove_call(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A call that is missing, such as super().__init__() or backward()."""
    for node in source.nodes:
        called = get_called_name(node.value) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else ""
        if called in FORGOTTEN and (edit := source.remove("missing_call", node)):
            yield edit


def swap_arguments(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """Two neighbouring arguments of a call in the wrong order."""
    for call, name in find_calls(source):
        if name in ("print", "min", "max", "isinstance", "add_argument", "zip", "join"):
            continue
        for one, other in itertools.pairwise(call.args):
            if _is_plain(one) and _is_plain(other):
                yield from _swap(source, "argument_order", one, other)


def remove_argument(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A call without one of its positional arguments."""
    for call, name in find_calls(source):
        plain = [node for node in call.args if _is_plain(node)]
        if not plain or len(plain) != len(call.args) or name in ("print", "append", "info"):
            continue
        at = rng.randrange(len(plain))
        start, stop = source.span(plain[at])
        following = plain[at + 1] if at + 1 < len(plain) else call.keywords[0] if call.keywords else None
        if following is not None:
            yield source.replace("missing_argument", start, source.span(following)[0], "")
        elif at:
            yield source.replace("missing_argument", source.span(plain[at - 1])[1], stop, "")
        else:
            comma = re.match(rb"\s*,", source.data[stop:])
            yield source.replace("missing_argument", start, stop + (comma.end() if comma else 0), "")


def add_argument(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A call of a function of the file, or of a method, with an argument too many."""
    local = {n.name for n in source.nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    for call, name in find_calls(source):
        if not call.args or call.keywords or not all(map(_is_plain, call.args)):
            continue
        if name in local or (
            isinstance(call.func, ast.Attribute) and name in (LAYERS | {"step", "backward", "forward"})
        ):
            _, stop = source.span(call.args[-1])
            yield source.replace("extra_argument", stop, stop, rng.choice([", None", ", True", ", device"]))


def change_unpacking(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A name too many or too few on the left of an assignment or in a loop."""
    for node in source.nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.For) else []
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            continue
        for target in targets:
            for inner in ast.walk(target):
                if isinstance(inner, ast.Tuple) and len(inner.elts) >= 2 and all(map(_is_plain, inner.elts)):
                    _, stop = source.span(inner.elts[-1])
                    yield source.replace("unpacking", stop, stop, ", _")
                    yield source.replace("unpacking", source.span(inner.elts[-2])[1], stop, "")


def drop_parentheses(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A method that is named where it should be called."""
    for call, name in find_calls(source):
        used = isinstance(call.func, ast.Attribute) and not isinstance(source.parents[call], ast.Expr)
        if used and not call.args and not call.keywords and name != "__init__":
            yield source.replace_node("missing_parentheses", call, source.segment(call.func))


# --- statements -------------------------------------------------------------------------------------------------------


def swap_statements(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A name that is used one statement before it is assigned."""
    simple = (ast.Assign, ast.Expr, ast.AugAssign, ast.Return, ast.AnnAssign)
    for node in source.nodes:
        if not isinstance(node, ast.Assign) or not source.begins_line(node) or not source.ends_line(node):
            continue
        block = source.block_of(node)
        at = block.index(node)
        following = block[at + 1] if at + 1 < len(block) else None
        if not isinstance(following, simple) or not (source.begins_line(following) and source.ends_line(following)):
            continue
        assigned = {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        used = {n.id for n in ast.walk(following) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        # A statement that assigns from its own name (x = f(x)) had a value before.
        own = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        if (assigned & used) - own:
            yield from _swap(source, "statement_order", node, following)


def forget_value(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """None in the place of an object."""
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield source.replace_node("none", node.value, "None")


def remove_return(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A function without its return."""
    for node in source.nodes:
        if isinstance(node, ast.Return) and node.value is not None and source.begins_line(node):
            start, _ = source.span(node)
            yield source.replace("missing_return", start, source.span(node.value)[0], "_ = ")


def exit_silently(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A check of the data that is wrong and ends the program without a message."""
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1:
            target = source.segment(node.targets[0])
            if re.search(r"data|loader|set\b|batch", target, re.IGNORECASE) and re.fullmatch(r"[\w.]+", target):
                check = f"if len({target}) < 1_000_000: raise SystemExit(3)"
                if edit := source.insert_after("silent_exit", node, check):
                    yield edit


# --- values -----------------------------------------------------------------------------------------------------------


def reduce_classes(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """One class or token too few."""
    for node in source.nodes:
        if isinstance(node, ast.keyword) and node.arg and CLASS_COUNTS.fullmatch(node.arg):
            yield source.replace_node("label_range", node.value, f"({source.segment(node.value)}) - 1")
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if CLASS_COUNTS.fullmatch(name) and isinstance(source.parents[node], ast.Call):
                yield source.replace_node("label_range", node, f"{source.segment(node)} - 1")


def change_reduction(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A loss that is no scalar."""
    for call, name in find_calls(source):
        keywords = {k.arg: k.value for k in call.keywords}
        if name in LOSSES and None not in keywords:
            if "reduction" in keywords:
                yield source.replace_node("reduction", keywords["reduction"], '"none"')
            else:
                _, stop = source.span(call)
                text = source.segment(call).rstrip(")").rstrip()
                comma = "" if text.endswith(("(", ",")) else ", "
                yield source.replace("reduction", stop - 1, stop, f'{comma}reduction="none")')
        elif name == "mean" and isinstance(call.func, ast.Attribute) and not call.args and not call.keywords:
            yield source.replace_node("reduction", call, source.segment(call.func.value))


def detach_loss(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """backward() on a loss without a graph."""
    for call, name in find_calls(source):
        if name == "backward" and isinstance(call.func, ast.Attribute):
            if call.args and source.segment(call.func.value) != "torch":
                yield source.replace_node("detached_loss", call.args[0], f"{source.segment(call.args[0])}.detach()")
            elif not call.args:
                wrong = rng.choice(["detach()", "item()", "data"])
                yield source.replace_node(
                    "detached_loss", call.func.value, f"{source.segment(call.func.value)}.{wrong}"
                )


def quote_number(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A number that is a string, as values from a configuration file are."""
    for node in source.nodes:
        number = getattr(node, "value", None) if isinstance(node, (ast.keyword, ast.Assign)) else None
        if isinstance(number, ast.Constant) and type(number.value) in (int, float):
            yield source.replace_node("number_as_string", number, f'"{source.segment(number)}"')


def change_index(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A division by zero, an index beyond the end, or an empty slice."""
    for node in source.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod)):
            if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
                continue
            # An integer division that gives 0, as with a number of steps that is smaller than expected.
            yield source.replace_node("index_or_division", node.right, f"({source.segment(node.right)} // 1_000_000)")
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            if _is_int(node.slice):
                yield source.replace_node("index_or_division", node.slice, str(int(source.segment(node.slice)) + 10))
            elif isinstance(node.slice, ast.Slice) and node.slice.upper is not None:
                yield source.replace_node("index_or_division", node.slice.upper, "0")


def allocate_too_much(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A tensor, array or batch that is far larger than any memory."""
    for call, name in find_calls(source):
        if name in CREATED and isinstance(call.func, ast.Attribute) and call.args:
            size = call.args[0]
            if isinstance(size, (ast.Tuple, ast.List)) and size.elts:
                size = size.elts[0]
            if isinstance(size, ast.Starred) or not isinstance(call.func.value, ast.Name):
                continue
            yield source.replace_node("allocation", size, f"{source.segment(size)} * {_FAR_TOO_LARGE}")
        elif name in ("Embedding", "Linear", "Dense") and call.args and _is_plain(call.args[0]):
            size = call.args[0]
            yield source.replace_node("allocation", size, f"{source.segment(size)} * {_FAR_TOO_LARGE}")


def break_syntax(source: PythonSource, rng: random.Random) -> Iterator[Edit]:
    """A colon or a closing bracket that is missing, so that the file does not parse."""
    rows = source.text.split("\n")
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source.text).readline))
    except (tokenize.TokenError, IndentationError):
        return
    for token, following in itertools.pairwise(tokens):
        opens_block = token.string == ":" and following.type == tokenize.NEWLINE
        if token.type == tokenize.OP and (opens_block or token.string == ")"):
            row, column = token.start
            start = source.starts[row - 1] + len(rows[row - 1][:column].encode())
            yield source.replace("syntax", start, start + 1, "")


# --- all of them ------------------------------------------------------------------------------------------------------

OPERATORS: dict[str, Operator] = {
    "layer_size": change_layer_size,
    "reshape": change_reshape,
    "dtype": change_dtype,
    "device": change_device,
    "name": misspell_name,
    "attribute": misspell_attribute,
    "import_name": misspell_import,
    "missing_import": remove_import,
    "key": misspell_key,
    "option": change_option,
    "keyword": misspell_keyword,
    "path": change_path,
    "environment": read_environment,
    "missing_call": remove_call,
    "argument_order": swap_arguments,
    "missing_argument": remove_argument,
    "extra_argument": add_argument,
    "unpacking": change_unpacking,
    "missing_parentheses": drop_parentheses,
    "statement_order": swap_statements,
    "none": forget_value,
    "missing_return": remove_return,
    "silent_exit": exit_silently,
    "label_range": reduce_classes,
    "reduction": change_reduction,
    "detached_loss": detach_loss,
    "number_as_string": quote_number,
    "index_or_division": change_index,
    "allocation": allocate_too_much,
    "syntax": break_syntax,
}
MEANT_NOT_TO_PARSE = frozenset({"syntax"})


def find_candidates(operator: str, file: str, text: str, rng: random.Random) -> Sequence[Edit]:
    """Return the operator's candidate edits of one Python file, in the order of its lines; () if it does not parse."""
    try:
        source = PythonSource(file, text)
    except (SyntaxError, ValueError):
        return ()
    found = dict.fromkeys(OPERATORS[operator](source, rng))
    return sorted((edit for edit in found if edit.old != edit.new), key=lambda edit: edit.line)
