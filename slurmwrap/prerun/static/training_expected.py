"""Decide by name and code whether a program is expected to train, and so whether its pre-run waits for steps."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

from slurmwrap.fast_dataclasses import replace
from slurmwrap.inject import slurmwrap_launcher_options
from slurmwrap.prerun.code_fingerprint import ProgramCode, read_program_code
from slurmwrap.prerun.static.command_wrappers import HARMLESS, PYTHON, SHELLS, get_inline_shell
from slurmwrap.prerun.static.entry_points import list_started_programs
from slurmwrap.prerun.static.shell_words import UNKNOWN
from slurmwrap.prerun.static.started_program import EntryPoint, StartedProgram, parse_program
from slurmwrap.prerun.verdict import python_traceback

# Programs that do not train: the first words of a command, each a shell pattern. "python -m X" stands for any Python
# that runs module X. A site adds its own: prerun.no_training.
KNOWN = (
    *("vllm serve", "python -m vllm.entrypoints.*", "python -m sglang.launch_server", "sglang serve"),
    *("text-generation-launcher", "tritonserver", "trtllm-serve", "ollama", "llama-server", "lmdeploy serve"),
    *("ray start", "python -m http.server", "tensorboard", "jupyter*", "code-server", "code tunnel", "sshd"),
    *("uvicorn", "gunicorn", "streamlit run", "mlflow server", "mlflow ui", "redis-server", "dask scheduler"),
    *("gmx", "gmx_mpi", "lmp", "lmp_*", "namd2", "namd3", "charmrun", "vasp_*", "pmemd*", "sander*", "cp2k*", "pw.x"),
)


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# In addition to command_wrappers.HARMLESS: commands that only handle files and processes.
_FILE_COMMANDS = _split_words(
    """cp mv rm ln touch tar unzip gzip gunzip rsync mkdir rmdir mktemp find ssh scp curl wget git kill pkill disown
    jobs break continue return exit logger stdbuf getconf ulimit ss ip lsof ps top id tty screen tmux fi done"""
)
# Seconds. A `sleep` of this length or more keeps the node occupied; a shorter one only waits for something.
_LONG_SLEEP_S = 600.0
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def find_known_program_of_script(
    script: str, chdir: str, args: Sequence[str], environ: Mapping[str, str], more: Sequence[str] = ()
) -> str:
    """Apply `find_known_program` to a script and the scripts that it starts; arguments as in `list_entry_points`."""
    unread: list[str] = []

    def read(path: str) -> str | None:
        text = python_traceback.read(path)
        if text is None:
            unread.append(path)
        return text

    found = find_known_program(tuple(list_started_programs(script, chdir, args, environ, read)), more)
    return "" if unread or not _is_shell(script) else found


def _is_shell(script: str) -> bool:
    words = script.partition("\n")[0][2:].split()
    return any(os.path.basename(word) in SHELLS for word in words[:2])  # noqa: PTH119


def find_known_program(commands: Iterable[StartedProgram], more: Sequence[str] = ()) -> str:
    """Return the known program of which a script consists, as the script writes it ("vllm serve").

    "" if any other program may run. `commands`: all commands of the script and of the scripts that it starts. `more`:
    the site's own patterns.
    """
    found = ""
    for one in commands:
        if (one.entry is not None and one.entry.kind == "shell") or get_inline_shell(one.words)[0] is not None:
            # The commands of the inner script are in `commands` too.
            continue
        named = _match_known(one.words, (*KNOWN, *more))
        if not named and not _is_harmless(one.words):
            return ""
        found = found or named
    return found


def _match_known(words: Sequence[str], patterns: Sequence[str]) -> str:
    normalized = _normalize_words(words)
    if not normalized:
        return ""
    if normalized[0] == "sleep" and _is_long(normalized[1:]):
        return " ".join(normalized)
    if normalized[0] == "tail" and any(
        re.fullmatch(r"-[a-zA-Z0-9]*[fF].*|--follow.*", word) for word in normalized[1:]
    ):
        return "tail -f"
    for pattern in patterns:
        pattern_words = pattern.split()
        if len(normalized) >= len(pattern_words) and all(map(fnmatchcase, normalized, pattern_words)):
            return " ".join(normalized[: len(pattern_words)])
    return ""


def _normalize_words(words: Sequence[str]) -> list[str]:
    """Return the words with the program's base name; for `python3.11 -u -m x` ["python", "-m", "x"]."""
    if not words or UNKNOWN in words[0]:
        return []
    name = os.path.basename(words[0])  # noqa: PTH119
    if PYTHON.fullmatch(name) and (module := slurmwrap_launcher_options.module_of(list(words))):
        return ["python", "-m", module]
    return [name, *words[1:]]


def _is_long(durations: Sequence[str]) -> bool:
    """Return whether `sleep` with these arguments keeps a node occupied; False if only the shell knows them."""
    total = 0.0
    for text in durations:
        if text.lower() in ("inf", "infinity"):
            return True
        match = re.fullmatch(r"(\d+\.?\d*)([smhd]?)", text)
        if match is None:
            return False
        total += float(match[1]) * _UNITS[match[2]]
    return total >= _LONG_SLEEP_S


def _is_harmless(words: tuple[str, ...]) -> bool:
    name = os.path.basename(words[0]) if words else ""  # noqa: PTH119
    # `[ -d x ]` is parsed as a pattern of file names.
    if words[:1] == (UNKNOWN,) and words[-1] == "]":
        return True
    return UNKNOWN not in name and name not in SHELLS and (name in HARMLESS or name in _FILE_COMMANDS)


# Seconds to read one program. It is long, so that a slow file server does not change the result.
_READ_S = 5.0


# Code that makes, calls or loads something that changes weights.
_TRAINING_CODE = re.compile(
    rb"\boptim\b|optimi[sz]er|\.backward\b|[Tt]rainer\b|\bfit\w*\(|\btrain\w*\(|\.learn\(|train(?:ing)?_(?:step|loop|epoch)"
    rb"|GradScaler|\bAdam|\bSGD\b|optax|GradientTape|\bgrad\(|zero_grad|value_and_grad|requires_grad_\((?!False)|LightningModule|deepspeed"
    rb"|fine_?tun|\bupdates?_(?:weights|params|parameters)|\.grad\b"
)
_STARTS_OTHERS = re.compile(
    rb"(?:subprocess|os\.system|Popen|os\.exec|posix_spawn)[\s\S]*(?:\.py|\.sh|sys\.executable|torchrun|accelerate)"
)
_COMMENT = re.compile(rb"(?m)(?:^|(?<=\s))#[^\n]*$")
# Commands of installed packages are judged by their words alone.
_INSTALLED = ("/bin/", "/site-packages/", "/dist-packages/")
# Signs of training in the words of a command line.
_TRAINING_WORDS = re.compile(
    r"(?:^|[^a-z])(?:pre-?|fine-?_?)?(?:train(?!ed)|tune|tuning|fit|learn|sft|dpo|ppo|grpo|rlhf|distill|optimi)", re.I
)
_EVALUATION_NAMES = re.compile(
    r"(?:^|[_-])(?:eval\w*|infer\w*|predict\w*|generat\w*|serve\w*|server|chat\w*|embed\w*)(?:[_-]|$)", re.IGNORECASE
)
_FLAGS = _split_words(
    """--eval --evaluate --eval-only --eval_only --evaluate-only --test-only --test_only --do_eval --do_predict
    --inference --infer --predict --generate"""
)
_MODES = re.compile(r"eval(?:uate|uation)?|infer(?:ence)?|predict|generate|serve|validate", re.IGNORECASE)
# Packages whose training steps are counted, or may be. The pre-run waits for a program that mentions training.
_FRAMEWORKS = _split_words(
    """torch tensorflow keras tf_keras jax flax optax haiku equinox lightning pytorch_lightning fabric transformers
    accelerate deepspeed megatron fastai paddle mindspore mxnet trl peft diffusers sentence_transformers timm
    torchvision torchaudio torchtext torch_geometric torchrl stable_baselines3 ultralytics"""
)
_UNCOUNTED = frozenset(("jax", "flax", "tensorflow", "keras", "tf_keras", "optax", "haiku", "equinox"))
_DISTRIBUTED = re.compile(rb"torch\.distributed|init_process_group|Accelerator\(|init_inference|\bray\b|mpi4py")
# Packages in which no call trains without a name that says so.
_NON_TRAINING_PACKAGES = _split_words(
    """numpy scipy pandas polars pyarrow h5py zarr sklearn skimage PIL cv2 imageio matplotlib seaborn plotly tqdm rich
    yaml toml tomli click typer fire absl tensorboard tensorboardX wandb mlflow requests httpx aiohttp
    urllib3 certifi boto3 s3fs fsspec huggingface_hub datasets tokenizers safetensors sentencepiece tiktoken nltk spacy
    einops psutil joblib dill cloudpickle lmdb msgpack orjson ujson pydantic fastapi starlette uvicorn flask gradio
    streamlit tornado gunicorn zmq redis grpc google vllm sglang onnx onnxruntime tensorrt bitsandbytes xformers
    flash_attn triton evaluate rouge_score sacrebleu torchmetrics librosa soundfile networkx sympy numba cupy mpi4py
    dask ase openmm MDAnalysis mdtraj xgboost lightgbm catboost faiss IPython setuptools packaging six attr
    dateutil typing_extensions pytz regex jinja2 markdown bs4 lxml"""
)


class Expectation:
    """What the programs of one trial may do, updated as they start. `environ` is the script's environment."""

    def __init__(self, script: str, chdir: str, args: Sequence[str], environ: Mapping[str, str]) -> None:
        self._search = environ.get("PYTHONPATH", "")
        self._known: dict[tuple[str, ...], bool] = {}
        # A program imports a framework whose steps are not those of a torch optimizer.
        self.uncounted = False
        # Its processes may communicate, so an open port does not mean that it is a server.
        self.distributed = False
        self.may_train = _is_python(script)
        commands = () if self.may_train else list_started_programs(script, chdir, args, environ, python_traceback.read)
        for one in commands:
            entry = one.entry
            if entry is not None and entry.kind != "shell":
                self.may_train |= self._is_training_expected(entry)
            elif entry is None and one.words:
                normalized = one.words
                hidden = any(UNKNOWN in w for w in normalized) and any(
                    w.endswith(".py") or w == "-m" for w in normalized
                )
                self.may_train |= hidden or bool(_TRAINING_WORDS.search(Path(one.words[0]).name))

    def see(self, cmdline: Sequence[str], cwd: str) -> None:
        """Take a running Python into account. The script may not show which command started it."""
        words = tuple(cmdline)
        if self.may_train or not words or not PYTHON.fullmatch(Path(words[0]).name):
            return
        if (entry := parse_program(words, cwd)) is not None:
            self.may_train |= self._is_training_expected(replace(entry, cwd=cwd))
        elif "-c" in words[1:] and not any("multiprocessing" in word or "resource_tracker" in word for word in words):
            code = "".join(words[words.index("-c") + 1 :][:1]).encode("utf-8", "replace")
            self.may_train |= self._is_training(read_program_code("", cwd, self._search, text=code, seconds=_READ_S))

    def _is_training_expected(self, entry: EntryPoint) -> bool:
        key = (entry.path, entry.module, entry.code or "", *entry.argv)
        if key not in self._known:
            self._known[key] = self._is_training_by_text(entry)
        return self._known[key]

    def _is_training_by_text(self, entry: EntryPoint) -> bool:
        """Return whether the program may train, by its command line and code; True if these leave a doubt."""
        self.distributed |= entry.kind in ("torchrun", "accelerate", "deepspeed")
        says = bool(_TRAINING_WORDS.search(" ".join((Path(entry.path).name, entry.module, *entry.argv))))
        if any(prefix in entry.path for prefix in _INSTALLED):
            return says
        if is_evaluating(entry.module.rpartition(".")[2] or entry.path, entry.argv):
            return False
        search = self._search if UNKNOWN in entry.modules else f"{entry.modules}:{self._search}"
        path, cwd = entry.path, entry.cwd
        if entry.module:
            top = entry.module.partition(".")[0]
            path = _find_module_file(entry.module, search)
            if not path:
                return says or top not in sys.stdlib_module_names | _NON_TRAINING_PACKAGES
            cwd = _get_outermost_folder(path, entry.module)
        text = entry.code.encode("utf-8", "replace") if entry.code is not None else None
        if text is None and (not path or UNKNOWN in path):
            return True
        return self._is_training(read_program_code(path, cwd, search, text=text, seconds=_READ_S), says=says)

    def _is_training(self, read: ProgramCode, *, says: bool = False) -> bool:
        """Return whether the program may train. `says`: its command line mentions training."""
        code = _COMMENT.sub(b"", read.code)
        self.uncounted |= bool(read.imports & _UNCOUNTED)
        self.distributed |= bool(_DISTRIBUTED.search(code))
        foreign = (
            read.imports - read.local - _FRAMEWORKS - _NON_TRAINING_PACKAGES - sys.stdlib_module_names - {"__future__"}
        )
        if not read.whole or foreign or _STARTS_OTHERS.search(code):
            return True
        return bool(read.imports & _FRAMEWORKS) and (says or bool(_TRAINING_CODE.search(code)))


def _find_module_file(module: str, search: str) -> str:
    """Return the file of `python -m module` below one of the directories in PYTHONPATH; "" if there is none."""
    tried = (str(Path(prefix, *module.split("."))) for prefix in search.split(":") if prefix)
    files = (file for base in tried for file in (f"{base}.py", f"{base}/__main__.py"))
    return next((file for file in files if UNKNOWN not in file and Path(file).is_file()), "")


def _get_outermost_folder(path: str, module: str) -> str:
    """Return the directory that contains the module's outermost package."""
    return path.removesuffix("/__main__.py").removesuffix(".py").removesuffix("/" + module.replace(".", "/"))


def is_evaluating(path: str, argv: Sequence[str]) -> bool:
    """Return whether a command line shows that the program only evaluates, predicts, generates or serves."""
    name = Path(path).name.removesuffix(".py")
    if _TRAINING_WORDS.search(" ".join((name, *argv))):
        return False
    modes = [
        argv[0] if argv else "",
        *(word.partition("=")[2] for word in argv if word.startswith(("--mode=", "mode="))),
    ]
    modes += [value for option, value in pairwise(argv) if option in ("--mode", "--task", "--phase")]
    return bool(_EVALUATION_NAMES.search(name)) or not _FLAGS.isdisjoint(argv) or any(map(_MODES.fullmatch, modes))


def _is_python(script: str) -> bool:
    """Return whether the batch script is itself a Python program; then the pre-run waits for its steps."""
    first = script.partition("\n")[0]
    return first.startswith("#!") and bool(re.search(r"\bpython[\d.]*\b", first))
