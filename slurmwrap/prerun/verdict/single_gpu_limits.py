"""Decide whether a failure may come from running on one GPU while the job has more. Pure but for `read`.

A failure counts as the job's own only if it is known not to depend on the number of processes, GPUs or nodes. Such
failures are wrong names, imports and calls, missing files, broken data, and shapes inside tensor operators. A check
(`raise`, `assert`), an index or a division is such a failure only if its source can be read and uses no such number.
In the comments below, peers are the other processes, GPUs and nodes of the job.

The patterns follow messages of Megatron-LM core/parallel_state.py and arguments.py, DeepSpeed runtime/config.py, torch
distributed/device_mesh.py and distributed_c10d.py, accelerate parallelism_config.py, Lightning fabric
plugins/environments/slurm.py, jax mesh_utils.py, vLLM config, and of srun and mpirun themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.verdict.python_traceback import Frame, TracebackSummary
from slurmwrap.prerun.verdict.source_slice import (
    Slice,
    calls_function_without_return,
    find_conditions_of_name,
    make_slice_at,
)

# Returns the text of the source file at a path.
Read = Callable[[str], str | None]


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# Messages of a process that should be one of many, in the words of the program itself.
_PEER_MESSAGES = _any(
    r"world[ _-]?size|(?:required|default|expected|total|larger) world\b",
    r"(?:tensor|pipeline|context|expert|sequence|data|model)[ _-]?(?:model[ _-]?)?parallel",
    r"num(?:ber)?[ _-]?(?:of[ _-])?(?:available[ _-])?(?:gpus?|devices|ranks|processes|nodes|machines|partitions)\b",
    r"(?:multiple|several|more than one|multi|too few)[ -]?(?:gpus?|nodes?|processes|ranks|devices)\b|\bpeer access",
    r"invalid device ordinal|invalid device id|requested gpu|device[ _]?mesh|n_?gpus?\b|\bnnodes\b|\bmesh[ _]shape",
    r"(?:invalid|out of range|bad) (?:src |dst |source |destination |peer |local |global )*rank|default process group",
    r"ntasks|SLURM_N(?:NODES|TASKS|PROCS)|nvidia-smi: command not found|libcuda\.so|libnvidia-ml|MPI_ERR_RANK",
    r"(?:at least|needs?|requires?|expects?|expected|must be|should be|desired|using) \d+ (?:\w+ )?(?:gpus?|nodes?|"
    r"ranks?|processes|devices|workers|tasks)\b",
    r"\b(?:only|found|has|have|got|sees?|detected|available|visible) (?:only )?[01] (?:\w+ )?(?:gpus?|nodes?|ranks?|"
    r"processes|devices?|tasks?)\b|(?:available|total|visible|desired) (?:available )?gpus?\b",
    r"parallel[ _]?dims|parallelism_?config|\b(?:gpus?|devices?|ranks?|nodes?) (?:available|visible|found)\b",
    r"hostfile|launcher '\w+' not installed|\bpdsh\b|pipeline[ _]?(?:stage|schedule)|\bon (?:this|each|every) rank\b",
    r"dispatched on the cpu or the disk|process group|(?:shard|replica)\w* (?:group )?size|\bshard(?:ing|ed|s)?\b",
    r"\b[nr]ccl|\bgloo\b|\bmesh\(|\bmesh[ _](?:dim|size|ax[ei]s)|(?:gpu|cuda):[1-9]|batch.{0,60}\bdivisible|"
    r"\bdivisible.{0,60}batch|\w\[[1-9]\d*\]: unbound variable",
    r"torch\.distributed|distributed (?:training|launch|mode)|FORCE_TORCHRUN|\bgpu memory|memory .{0,20}\bgpus?\b",
    r"taskset: failed|numa|cpu affinity|processor affinity|timed? ?out|nodelist",
)
# Expressions in the user's code that count its peers.
_PEER_COUNTS_IN_CODE = _any(
    r"world|n_?ranks|num_ranks|(?:\b|_)rank|device_count|n_?devices|\bdevices\b|gpu_?ids|gpus\b",
    r"n_?gpus?\b|num_gpus|n_?nodes|\bnodes\b|parallel_|_parallel|parallelism|data_?parallel\b|parallel\.|mesh",
    r"\b[tpdce]p(?:_size|_degree)?\b|shard|ntasks|n_?procs?\b|nodelist|hostlist|hosts?\b|hostnames|peers?\b",
    r"(?:hvd|comm|mpi|dist|xm|group)\w*\.(?:get_)?(?:local_)?(?:size|rank)\b|gather|affinity|local_size|processes",
    r"is_initialized|is_distributed|is_torchelastic|is_mpi",
)
# The same for the values behind a name. The rank is left out: rank 0 exists with one process and with many.
_PEER_COUNTS_IN_VALUES = _any(
    r"world|n_?ranks|num_ranks|device_count|n_?devices|\bdevices\b|gpu_?ids",
    r"n_?gpus?\b|num_gpus|n_?nodes\b|parallel_|_parallel|parallelism|mesh|distributed",
    r"\b[tpdce]p_(?:size|degree)\b|ntasks|n_?procs?\b|nodelist|hostlist|hosts\b|hostnames|peers\b|gather|cpus?_count",
    r"(?:hvd|comm|mpi|dist|xm|group)\w*\.(?:get_)?(?:local_)?size\b|process_count|num_processes|\bdevices\(|affinity",
    r"multi_?gpu|multi_?node|local_?devices|total_memory|mem_get_info|get_device_properties|nvidia.smi",
    r"SLURM_|OMPI_|PMI_",
    r"is_initialized|is_distributed|is_torchelastic|is_mpi|list_physical_devices|virtual_memory|max_memory|CUDA_VISIBLE",
)
# Calls that need several devices, whatever their arguments are: a trial has only one.
_NEEDS_DEVICES = _any(
    r"\bdevices\(\)|device_count|local_devices|device_ids|device_map|\bmesh|new_group|init_device_mesh",
    r"num_gpus|n_?gpus?\b|tensor_parallel|pipeline_parallel|world_?size|(?:src|dst|dest|source)\s*=|\bcuda:[1-9]",
    r"(?:dist|comm|distributed)\.(?:i?send|i?recv|scatter|gather|broadcast|all_|reduce|split)",
)
# Library files that form groups, meshes and pipelines: what they refuse is mostly the number of processes.
_GROUPING_FILES = re.compile(
    r"-packages/(?:torch/distributed/(?!fsdp|optim|checkpoint|elastic|run\.|launch)|mpi4py/|horovod/|accelerate/state"
    r"|deepspeed/(?:comm|moe|pipe|runtime/pipe|utils/groups)|jax/_src/(?:mesh|distributed|sharding|clusters|p?jit|pmap"
    r"|shard_map)|megatron/core/(?:parallel_state|tensor_parallel|pipeline_parallel|distributed)|vllm/(?:distributed|"
    r"config)|(?:lightning|pytorch_lightning)/.*(?:strategies|environments)/|torchtitan/distributed)"
)
# Programs for many processes, also as a checkout: their checks are mostly about the layout of these processes.
_MULTI_PROCESS_FILES = re.compile(
    r"/(?:megatron|deepspeed|nemo\w*|torchtitan|colossalai|composer|llmfoundry|fairscale|fairseq\w*|openrlhf|verl|trl|vllm"
    r"|sglang|ray|llamafactory|axolotl|accelerate|detectron2|mmengine|mmcv|horovod|bagua|dgl|torchrec|torch_xla|apex"
    r"|transformer_engine|nanotron|levanter|maxtext|oslo|alpa|paddle|mindspore|internlm|xtuner|swift|unsloth|dask\w*"
    r"|flashattn|xfuser|picotron|torchft|torchforge|peft|optimum|petsc4py|mpi4py|parallel\w*|distributed)/"
)
# Libraries whose checks do not depend on other processes, without those of their parts that do.
_SINGLE_PROCESS_FILES = re.compile(
    r"/lib/python[\d.]+/(?!(?:site|dist)-packages)|^<frozen|-packages/(?:torch/(?!distributed|nn/parallel|cuda/__init__|cuda/nccl"
    r"|utils/data/distributed)|torchvision|torchaudio|torchtext|PIL|pandas|numpy|scipy|sklearn|h5py|pyarrow|datasets|tokenizers"
    r"|sentencepiece|safetensors|yaml|omegaconf|hydra|timm|einops|keras/(?!src/distribution|src/backend/\w+/distri)|click|typer"
    r"|transformers/(?:models|tokenization|utils|configuration|image|feature|data|pipelines|generation|processing|optimization)"
    r"|huggingface_hub|wandb|mlflow|tensorboard\w*|triton|optax|flax|cv2|albumentations|librosa|soundfile|zarr|netCDF4|xarray"
    r"|torchmetrics|pydantic\w*|jax/_src/(?!mesh|distributed|sharding|clusters|p?jit|pmap|shard_map|xla_bridge)|matplotlib"
    r"|tensorflow/python/(?!distribute|tpu|eager/context|framework/config)|nltk|spacy|sacrebleu|evaluate|lightning/pytorch/"
    r"(?:trainer/configuration_validator|loops|core)|pytorch_lightning/(?:trainer/configuration_validator|loops|core)"
    r"|tqdm|requests|urllib3|fsspec|json5|toml\w*|monai|gym\w*|torch_geometric|ml_collections|absl|jsonargparse)"
)
# Messages that name their subject themselves: a name, a file or a format.
_NAME_OR_FORMAT_MESSAGES = _any(
    r"\b(?:unknown|unrecogni[sz]ed|unexpected|misspelt|undefined|unsupported) (?:\w+ ){0,3}(?:key|option|argument|"
    r"model|name|dataset|optimi[sz]er|loss|task|split|format|extension|config|scheduler|activation|choice|type|field|column)",
    r"no such file|does not exist|doesn't exist|is not a (?:directory|file)|file not found|cannot find (?:the )?file",
    r"expected a (?:string|path|dict)|invalid (?:choice|literal|json|yaml)|could not (?:parse|interpret|decode)",
    r"missing (?:\w+ )?(?:key|column|field|file|argument)|no columns|not in the dataset|(?:must|should) be one of",
)
# Messages of a library about the sizes or types of its arguments.
_ARGUMENT_MESSAGES = _any(
    r"torch\.size|\bshapes?\b|\bsizes?\b.{0,60}\d|\b(?:input|target|batch)_?size \(|\bdim(?:ension)?s?\b|\bd?types?\b",
    r"\bchannels?\b|\b(?:tensor|ndarray|array|string|list|dict|int|float|callable|tuple)\b.{0,40}\b(?:got|but|not|expected)\b",
    r"expected .{0,60}(?:got|but|received|found)\b",
    r"must be (?:an? |one of|of type|in|positive|non-negative|greater|less)",
)
# Messages of torch about gradients and types, which the number of processes does not change.
_AUTOGRAD_MESSAGES = _any(
    r"does not require grad|does not have a grad_fn|grad can be implicitly created only for scalar outputs",
    r"only tensors of floating point|a leaf variable that requires grad|numpy\(\) on tensor that requires grad",
    r"trying to backward through the graph a second time|modified by an inplace operation",
    r"expected scalar type \w+ but found|not implemented for '\w+'|result type \w+ can't be cast",
    r"expected .{0,40}(?:to have the same dtype|of type torch\.\w+)|must have the same dtype",
)
_NAME_ERRORS = ("NameError", "UnboundLocalError")
_NEVER_BY_PEERS = (
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
    "IndentationError",
    "TabError",
    "RecursionError",
)
_ATTRIBUTE_ERRORS = ("TypeError", "AttributeError")
_FILE_ERRORS = ("FileNotFoundError", "PermissionError", "NotADirectoryError", "IsADirectoryError", "FileExistsError")
# Caused by a size that may depend on peers: ranks[1], batch // (world - 1).
_SIZE_ERRORS = ("IndexError", "KeyError", "ZeroDivisionError", "StopIteration")
# Errors caused by data, texts and tracers.
_DATA_ERRORS = re.compile(
    r"^(?:JSONDecodeError|Unicode\w+|UnpicklingError|\w*ScannerError|\w*ParserError|UnidentifiedImageError|BadZipFile"
    r"|BadGzipFile|EOFError|Tracer\w+|Concretization\w+|UndefinedVariable\w*|HFValidationError|Arrow\w+|Config\w*Error"
    r"|DatasetGeneration\w*|CompilationError|TypeCheck\w*|LinAlgError|NotImplementedError|Scope\w+Error)$"
)
# Attributes that exist only on a model, a tensor or a sampler that is spread over processes.
_WRAPPER_ATTRIBUTES = re.compile(
    r"has no attribute '(?:module|no_sync|set_epoch|full_tensor|to_local|device_mesh|placements|_fsdp\w*|unshard"
    r"|reshard|summon_full_params|clip_grad_norm_|set_requires_gradient_sync|reducer|join|process_group|register_comm_hook"
    r"|set_\w*sync|consolidate_state_dict|num_replicas|save_checkpoint|load_checkpoint|require_backward_grad_sync"
    r"|sharded_state_dict|addressable_shards|devices)'"
)
_WRAPPED = re.compile(r"'(?:DistributedDataParallel|FullyShardedDataParallel|DataParallel|DeepSpeedEngine)' object")
_PEER_NAMES = re.compile(r"sampler|dist\b|group|mesh|world|\bddp|peer|gather|rank|comm\b|hosts|shard", re.IGNORECASE)
_PER_RANK = re.compile(
    r"(?:^|[/_.-])(?:mp_|zero_pp_|tp_|pp_|dp_)?(?:rank|gpu|node|worker|proc|task|tp|pp|shard)[_-]?\d|__\d+_\d+\.distcp"
    r"|world[_-]?\d",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"^['\"]")
_NAMED = re.compile(r"(?:name|variable) '(\w+)'")
_TIMES = re.compile(r"time_?d?_?out", re.IGNORECASE)
_CHECK = re.compile(r"(?:raise|assert)\b|.*(?:sys\.|os\._?)exit|(?:sys\.)?exit\(|parser\.error|.*\babort\(")
_SHAPES = re.compile(
    r"shape torch\.Size\(\[([\d, ]*)\]\) from checkpoint, the shape in current model is torch\.Size\(\[([\d, ]*)\]"
)
_MODULE_KEY = re.compile(r'Unexpected key\(s\) in state_dict: "module\.')
# Without a traceback: messages of shells, option parsers and interpreters about errors in their own input.
_TOOL_MESSAGES = _any(
    r"^[\w./-]+\.py\S*(?: \w+)?: error: |^usage: |\berror: (?:argument \S+: |the following arguments"
    r"|unrecognized arguments)",
    r": command not found|can't open file|No such (?:file|option|command)|could not override|is not in struct",
    r"invalid (?:choice|option|value)|unrecogni[sz]ed option|missing (?:argument|option)|Fatal Python error",
    r"MissingConfigException|could not find '|Environment\w+NotFound|conda environment|no module named|ModuleNotFound"
    r"|\bmodule\(s\)|unable to locate a module",
    r": (?:line )?\d+: (?!.*(?:division by 0|bad array subscript))|^\S*(?:ba|da|z|k)?sh: |: permission denied"
    r"|: not found$",
    r"is a directory|not a directory|bad interpreter|cannot execute|error while loading shared libraries|syntax error",
)
# Errors that remain the job's own even if the option concerns a number of peers.
_USAGE_ERRORS = _any(
    r"\.?\w+: error: (?:unrecogni[sz]ed arguments|the following arguments are required|ambiguous option)",
    r"\berror: argument \S+: (?:invalid \w+ value|expected (?:one|at least one|\d+) arguments?|invalid choice)",
)
# Messages about an index inside a tensor operator: of a token, a class or an axis.
_TENSOR_INDEX_MESSAGES = _any(
    r"index out of range in self|^\w+: target -?\d+ is out of bounds|too many indices for|dimension out of range",
)


# Environment variables that Slurm, its plugins or an MPI launcher set.
_OF_SLURM_OR_MPI = re.compile(
    r"(?:SLURMD?|SRUN|SPANK|PMIX?\d?|OMPI|OPAL|PRTE|MV2|MPI|I_MPI|MPIEXEC|HYDRA|FLUX|ALPS|LSB|JSM|PALS|DW|BB|HOROVOD)_\w+"
    r"|MPI_?LOCAL\w+|(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK"
)
# Environment variables that launchers of training processes set.
_OF_TRAINING_LAUNCHERS = re.compile(
    r"(?:(?:LOCAL|GROUP|NODE|ROLE|GLOBAL|CROSS)_)?(?:RANK|WORLD_SIZE|SIZE)|GROUP_WORLD_SIZE|ROLE_(?:NAME|WORLD_SIZE)"
    r"|MASTER_(?:ADDR|PORT)|(?:TORCHELASTIC|ACCELERATE|FSDP|PET|DEEPSPEED|XRT|TPU)_\w+|NODE_ID|NUM_PROCESSES"
)
# bash, dash, zsh and ksh about a variable that is not set, also by ${NAME:?words}; then csh.
_UNSET_IN_SHELL = re.compile(
    r"^[^\s:\[]+(?:\[\d+\]|: ?(?:line )?\d+): (?P<name>[A-Za-z_]\w*): (?:unbound variable|parameter (?:not set|null)"
    r"|(?!(?:readonly|bad|invalid|ambiguous|cannot|restricted)\b|.*(?:not found|o such file|denied|directory))\S)"
    r"|^(?P<csh>[A-Za-z_]\w*): Undefined variable\.?$"
)
_OS_ENVIRON = re.compile(r"^<frozen os>$|/os\.py$")
_READ_WITHOUT_DEFAULT = r"(?:os\.)?(?:getenv|environ\.get)\(\s*['\"](\w+)['\"]\s*(?:,\s*None\s*)?\)"
# Calls that fail for None as their first argument.
_NOT_FOR_NONE = (
    r"\b(?:int|float|Path|PurePath|open|join|listdir|scandir|makedirs|mkdir|abspath|expanduser|basename)\(\s*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailure:
    """A failure of a trial. `said` is the error line, or the lines that explain it if there is no traceback."""

    said: str
    category: str
    found: TracebackSummary | None
    logs: tuple[str, ...]
    read: Read


def may_pass_with_more_processes(failure: TrialFailure) -> bool:
    """Return whether the failed trial might have passed with more GPUs, processes or nodes."""
    # The kind of the exception selects the test. Only kinds that never depend on peers are decided by name alone; a
    # message that mentions peers decides before the more specific tests.
    found = failure.found
    if find_unset_variable(failure):
        return found is not None and _is_assigned_for_peers(failure, found.own)
    if found is None:
        return _depends_by_output(failure)
    if found.kind in _NEVER_BY_PEERS:
        return False
    if found.kind in _NAME_ERRORS:
        return _depends_by_name(failure, found)
    if found.kind in _ATTRIBUTE_ERRORS:
        return _depends_by_attribute(failure, found)
    if _PEER_MESSAGES.search(failure.said) or _TIMES.search(found.kind):
        return True
    if found.kind in _FILE_ERRORS:
        return bool(_PER_RANK.search(found.message)) or _uses_peer_count(failure, found.own)
    if _DATA_ERRORS.match(found.kind) and not _CHECK.match(found.own.code):
        return False
    if found.kind == "RuntimeError" and _AUTOGRAD_MESSAGES.search(found.message):
        return False
    return _depends_by_size(failure, found) if found.kind in _SIZE_ERRORS else _depends_by_value(failure, found)


def find_unset_variable(failure: TrialFailure) -> str:
    """Return the environment variable that the program read and nothing had set; "" if the failure is another one.

    The trial has the variables of the job, so such a failure is the job's own unless is_set_by_launcher().
    """
    found = failure.found
    if found is None:
        rows = [row for row in failure.said.splitlines() if row.strip()]
        last = _UNSET_IN_SHELL.match(rows[-1].strip()) if rows else None
        return (last["name"] or last["csh"]) if last is not None else ""
    if found.kind == "KeyError" and (name := re.fullmatch(r"'(\w+)'", found.message)):
        return name[1] if _OS_ENVIRON.search(found.frames[-1].file) or "environ" in found.own.code else ""
    return _find_none_from_environment(failure, found) if "NoneType" in found.message else ""


def _find_none_from_environment(failure: TrialFailure, found: TracebackSummary) -> str:
    """Return the variable whose missing value is the None of a TypeError or AttributeError, as in int(getenv("N"))."""
    source, text = _slice_at_frame(failure, found.own), failure.read(found.own.file) or ""
    statement = source.statement if source is not None else found.own.code
    read = {match[0]: match[1] for match in re.finditer(_READ_WITHOUT_DEFAULT, statement)}
    for name in dict.fromkeys(re.findall(r"\b[A-Za-z_]\w*\b", statement)):
        values = re.findall(rf"^\s*{name}\s*(?::[^=\n]+)?=(?!=)\s*(.+?)\s*$", text, re.MULTILINE)
        if len(values) == 1 and (value := re.fullmatch(_READ_WITHOUT_DEFAULT, values[0])):
            read[name] = value[1]
    launcher = next((name for name in read.values() if is_set_by_launcher(name, many=True)), "")
    attribute = re.search(r"has no attribute '(\w+)'", found.message)
    after = rf"\s*\.{attribute[1]}\b" if attribute else r"\s*[,)]"
    before = "" if attribute else _NOT_FOR_NONE
    certain = (name for text, name in read.items() if re.search(rf"{before}(?<!\w){re.escape(text)}{after}", statement))
    return launcher or next(certain, "")


def _is_assigned_for_peers(failure: TrialFailure, frame: Frame) -> bool:
    """Return whether the statement assigns a name under a condition on the number of peers."""
    target, text = re.match(r"(\w+)\s*(?::[^=]+)?=(?!=)", frame.code), failure.read(frame.file)
    conditions = find_conditions_of_name(text, target[1]) if target is not None and text is not None else None
    return bool(conditions and _PEER_COUNTS_IN_VALUES.search(conditions))


def is_set_by_launcher(name: str, *, many: bool) -> bool:
    """Return whether Slurm or a launcher of the job may set an environment variable that the trial lacks.

    `many`: the job has more GPUs or nodes than the trial. If not, its launchers for training ran in the trial as well.
    """
    return bool(_OF_SLURM_OR_MPI.fullmatch(name) or (many and _OF_TRAINING_LAUNCHERS.fullmatch(name)))


def _depends_by_output(failure: TrialFailure) -> bool:
    """Return whether a failure without a traceback may depend on peers: unless a tool reports a wrong input."""
    if _USAGE_ERRORS.search(failure.said):
        return False
    if _PEER_MESSAGES.search(failure.said):
        return True
    rows = "\n".join((failure.said, *failure.logs)).splitlines()
    return not any(_TOOL_MESSAGES.search(row) for row in rows)


def _depends_by_name(failure: TrialFailure, found: TracebackSummary) -> bool:
    """Return whether the unknown name is assigned only if there are several processes."""
    named = _NAMED.search(found.message)
    text = failure.read(found.own.file)
    if named is None or (found.kind == "NameError" and text is None):
        return False
    above = find_conditions_of_name(text, named[1]) if text is not None else None
    return (
        bool(_PEER_COUNTS_IN_VALUES.search(above))
        if above is not None
        else text is None and bool(_PEER_NAMES.search(named[1]))
    )


def _depends_by_attribute(failure: TrialFailure, found: TracebackSummary) -> bool:
    """Return whether the missing attribute exists only on a model, tensor or sampler that is spread over processes."""
    if _WRAPPER_ATTRIBUTES.search(found.message) and not _WRAPPED.search(found.message):
        return True
    if "NoneType" not in found.message:
        return False
    text = failure.read(found.own.file)
    if text is not None and calls_function_without_return(text, found.own.line):
        return False
    return _uses_peer_count(failure, found.own)


def _depends_by_size(failure: TrialFailure, found: TracebackSummary) -> bool:
    """Return whether a wrong index, key or division may depend on peers; True if its source cannot be read."""
    own, last = found.own, found.frames[-1]
    if _TENSOR_INDEX_MESSAGES.search(found.error):
        return False
    if _uses_peer_count(failure, own) or _GROUPING_FILES.search(last.file) or _NEEDS_DEVICES.search(own.code):
        return True
    if not last.own or (found.kind == "KeyError" and _QUOTED.match(found.message)):
        # The index is inside an operator, or a name is looked up in a mapping.
        return False
    return _slice_at_frame(failure, own) is None


def _depends_by_value(failure: TrialFailure, found: TracebackSummary) -> bool:
    """Return whether a wrong value or a failed check may depend on peers, by the code along the traceback.

    A check whose source cannot be read counts as dependent, unless the file or the message rules that out.
    """
    last, own = found.frames[-1], found.own
    own_lines = [f.code for f in found.frames if f.own] or [last.code]
    if _GROUPING_FILES.search(last.file) or _NEEDS_DEVICES.search(own_lines[-1]) or _uses_peer_count(failure, own):
        return True
    if any(_PEER_COUNTS_IN_CODE.search(code) for code in own_lines if _CHECK.match(code)):
        return True
    if "loading state_dict" in found.message:
        return _is_other_sharding(failure)
    source = _slice_at_frame(failure, last)
    if not (_CHECK.match(last.code) or (source is not None and source.explicit)):
        return bool(_MULTI_PROCESS_FILES.search(last.file)) and not last.own and "-packages/torch/" not in last.file
    return not _is_independent_check(failure, found, source)


def _is_independent_check(failure: TrialFailure, found: TracebackSummary, source: Slice | None) -> bool:
    """Return whether the failed check does not depend on the number of processes."""
    last = found.frames[-1]
    if _SINGLE_PROCESS_FILES.search(last.file) or _NAME_OR_FORMAT_MESSAGES.search(found.message):
        return True
    installed = "-packages/" in last.file and not _MULTI_PROCESS_FILES.search(last.file)
    if installed and _ARGUMENT_MESSAGES.search(found.message):
        return True
    if source is None or source.open or _MULTI_PROCESS_FILES.search(last.file) or _uses_peer_count(failure, last):
        return False
    callers = [frame for frame in found.frames[-3:-1] if frame.own]
    return not any(_PEER_COUNTS_IN_CODE.search(frame.code) for frame in callers)


def _uses_peer_count(failure: TrialFailure, frame: Frame) -> bool:
    """Return whether the statement of a frame depends on a number of peers, by its own text or by its source."""
    source = _slice_at_frame(failure, frame)
    if source is None:
        return bool(_PEER_COUNTS_IN_CODE.search(frame.code))
    return bool(_PEER_COUNTS_IN_CODE.search(source.statement) or _PEER_COUNTS_IN_VALUES.search(source.behind))


def _slice_at_frame(failure: TrialFailure, frame: Frame) -> Slice | None:
    text = None if frame.file.startswith("<") else failure.read(frame.file)
    return make_slice_at(text, frame.line) if text is not None else None


def _is_other_sharding(failure: TrialFailure) -> bool:
    """Return whether the checkpoint's weights are equal parts of the model's, or were saved from a wrapped model."""
    whole = "\n".join(failure.logs)
    pairs = [(_parse_sizes(m[1]), _parse_sizes(m[2])) for m in _SHAPES.finditer(whole)]
    return bool(_MODULE_KEY.search(whole)) or any(_is_shard_of(a, b) or _is_shard_of(b, a) for a, b in pairs)


def _parse_sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size.strip()]


def _is_shard_of(part: list[int], whole: list[int]) -> bool:
    """Return whether one dimension is split into 2, 3, 4, 6, 8, ... parts: [6400, 512] of [51200, 512]."""
    if len(part) != len(whole):
        return False
    ratios = [b / a for a, b in zip(part, whole, strict=True) if a and a != b]
    return len(ratios) == 1 and ratios[0] in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
