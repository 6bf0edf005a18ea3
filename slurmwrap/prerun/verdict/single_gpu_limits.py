"""Whether a failure may come from being alone: one process on one GPU of a job that has more. Pure but for `read`.

The burden of proof lies on the failure: it is the job's own only where what failed is known not to rest on a count of
processes, GPUs or nodes. Names, imports, calls, missing files, broken data, and shapes inside tensor operators are
such. A check (`raise`, `assert`), an index or a division is one only where its source can be read and rests on no
such count.

Wordings after Megatron-LM core/parallel_state.py and arguments.py, DeepSpeed runtime/config.py, torch
distributed/device_mesh.py and distributed_c10d.py, accelerate parallelism_config.py, Lightning fabric
plugins/environments/slurm.py, jax mesh_utils.py, vLLM config, srun's and mpirun's own messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.verdict.python_traceback import Frame, TracebackSummary
from slurmwrap.prerun.verdict.source_slice import Slice, conditions_of_name, slice_at

# Path -> the text of a source file.
Read = Callable[[str], str | None]


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# Said by a single process of what should be many, in words of its own.
_ONLY_TOGETHER = _any(
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
# What a line of the user's compares with when it counts its peers.
_COUNTS_PEERS = _any(
    r"world|n_?ranks|num_ranks|(?:\b|_)rank|device_count|n_?devices|\bdevices\b|gpu_?ids|gpus\b",
    r"n_?gpus?\b|num_gpus|n_?nodes|\bnodes\b|parallel_|_parallel|parallelism|data_?parallel\b|parallel\.|mesh",
    r"\b[tpdce]p(?:_size|_degree)?\b|shard|ntasks|n_?procs?\b|nodelist|hostlist|hosts?\b|hostnames|peers?\b",
    r"(?:hvd|comm|mpi|dist|xm|group)\w*\.(?:get_)?(?:local_)?(?:size|rank)\b|gather|affinity|local_size|processes",
    r"is_initialized|is_distributed|is_torchelastic|is_mpi",
)
# The same in values behind a name, where a rank says nothing: rank 0 is there with one process and with many.
_COUNTS = _any(
    r"world|n_?ranks|num_ranks|device_count|n_?devices|\bdevices\b|gpu_?ids",
    r"n_?gpus?\b|num_gpus|n_?nodes\b|parallel_|_parallel|parallelism|mesh|distributed",
    r"\b[tpdce]p_(?:size|degree)\b|ntasks|n_?procs?\b|nodelist|hostlist|hosts\b|hostnames|peers\b|gather|cpus?_count",
    r"(?:hvd|comm|mpi|dist|xm|group)\w*\.(?:get_)?(?:local_)?size\b|process_count|num_processes|\bdevices\(|affinity",
    r"multi_?gpu|multi_?node|local_?devices|total_memory|mem_get_info|get_device_properties|nvidia.smi",
    r"SLURM_|OMPI_|PMI_",
    r"is_initialized|is_distributed|is_torchelastic|is_mpi|list_physical_devices|virtual_memory|max_memory|CUDA_VISIBLE",
)
# What asks for several devices, whatever is wrong with the value: only one is there.
_NEEDS_DEVICES = _any(
    r"\bdevices\(\)|device_count|local_devices|device_ids|device_map|\bmesh|new_group|init_device_mesh",
    r"num_gpus|n_?gpus?\b|tensor_parallel|pipeline_parallel|world_?size|(?:src|dst|dest|source)\s*=|\bcuda:[1-9]",
    r"(?:dist|comm|distributed)\.(?:i?send|i?recv|scatter|gather|broadcast|all_|reduce|split)",
)
# Where libraries form groups, meshes and pipelines: what they refuse there is mostly the number of processes.
_GROUPING = re.compile(
    r"-packages/(?:torch/distributed/(?!fsdp|optim|checkpoint|elastic|run\.|launch)|mpi4py/|horovod/|accelerate/state"
    r"|deepspeed/(?:comm|moe|pipe|runtime/pipe|utils/groups)|jax/_src/(?:mesh|distributed|sharding|clusters|p?jit|pmap"
    r"|shard_map)|megatron/core/(?:parallel_state|tensor_parallel|pipeline_parallel|distributed)|vllm/(?:distributed|"
    r"config)|(?:lightning|pytorch_lightning)/.*(?:strategies|environments)/|torchtitan/distributed)"
)
# Programs for many processes, also as a checkout: their checks are mostly about how these are laid out.
_FOR_MANY = re.compile(
    r"/(?:megatron|deepspeed|nemo\w*|torchtitan|colossalai|composer|llmfoundry|fairscale|fairseq\w*|openrlhf|verl|trl|vllm"
    r"|sglang|ray|llamafactory|axolotl|accelerate|detectron2|mmengine|mmcv|horovod|bagua|dgl|torchrec|torch_xla|apex"
    r"|transformer_engine|nanotron|levanter|maxtext|oslo|alpa|paddle|mindspore|internlm|xtuner|swift|unsloth|dask\w*"
    r"|flashattn|xfuser|picotron|torchft|torchforge|peft|optimum|petsc4py|mpi4py|parallel\w*|distributed)/"
)
# Libraries whose checks know nothing of other processes, and their parts that do.
_PLAIN = re.compile(
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
# A check that says itself that it is about a name, a file or a format.
_SAID_PLAINLY = _any(
    r"\b(?:unknown|unrecogni[sz]ed|unexpected|misspelt|undefined|unsupported) (?:\w+ ){0,3}(?:key|option|argument|"
    r"model|name|dataset|optimi[sz]er|loss|task|split|format|extension|config|scheduler|activation|choice|type|field|column)",
    r"no such file|does not exist|doesn't exist|is not a (?:directory|file)|file not found|cannot find (?:the )?file",
    r"expected a (?:string|path|dict)|invalid (?:choice|literal|json|yaml)|could not (?:parse|interpret|decode)",
    r"missing (?:\w+ )?(?:key|column|field|file|argument)|no columns|not in the dataset|(?:must|should) be one of",
)
_NAMES = ("NameError", "UnboundLocalError")
_NEVER = ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError", "RecursionError")
_ABSENCE = ("TypeError", "AttributeError")
_FILES = ("FileNotFoundError", "PermissionError", "NotADirectoryError", "IsADirectoryError", "FileExistsError")
_BY_SIZE = ("IndexError", "KeyError", "ZeroDivisionError", "StopIteration")  # ranks[1], batch // (world - 1)
# What data, texts and tracers are at fault for.
_DATA = re.compile(
    r"^(?:JSONDecodeError|Unicode\w+|UnpicklingError|\w*ScannerError|\w*ParserError|UnidentifiedImageError|BadZipFile"
    r"|BadGzipFile|EOFError|Tracer\w+|Concretization\w+|UndefinedVariable\w*|HFValidationError|Arrow\w+|Config\w*Error"
    r"|DatasetGeneration\w*|CompilationError|TypeCheck\w*|LinAlgError|NotImplementedError|Scope\w+Error)$"
)
# What is there only of a model, a tensor or a sampler that is spread over processes.
_OF_WRAPPERS = re.compile(
    r"has no attribute '(?:module|no_sync|set_epoch|full_tensor|to_local|device_mesh|placements|_fsdp\w*|unshard"
    r"|reshard|summon_full_params|clip_grad_norm_|set_requires_gradient_sync|reducer|join|process_group|register_comm_hook"
    r"|set_\w*sync|consolidate_state_dict|num_replicas|save_checkpoint|load_checkpoint|require_backward_grad_sync"
    r"|sharded_state_dict|addressable_shards|devices)'"
)
_WRAPPED = re.compile(r"'(?:DistributedDataParallel|FullyShardedDataParallel|DataParallel|DeepSpeedEngine)' object")
_OF_PEERS = re.compile(r"sampler|dist\b|group|mesh|world|\bddp|peer|gather|rank|comm\b|hosts|shard", re.IGNORECASE)
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
# Without a traceback: what shells, option parsers and interpreters say of their own.
_SAID_BY_TOOLS = _any(
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
# Of these not even an option that counts peers is to blame.
_MISSPELT = _any(
    r"\.?\w+: error: (?:unrecogni[sz]ed arguments|the following arguments are required|ambiguous option)",
    r"\berror: argument \S+: (?:invalid \w+ value|expected (?:one|at least one|\d+) arguments?|invalid choice)",
)
# Indices inside tensor operators: of a token, a class, an axis.
_OF_TENSORS = _any(
    r"index out of range in self|^\w+: target -?\d+ is out of bounds|too many indices for|dimension out of range",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailure:
    """What failed. `said` is the error line, or the lines that explain it where there is no traceback."""

    said: str
    category: str
    found: TracebackSummary | None
    logs: tuple[str, ...]
    read: Read


def needs_company(failure: TrialFailure) -> bool:
    """Whether more GPUs, processes or nodes might have gone well where the trial failed."""
    found = failure.found
    if found is None:
        return _without_traceback(failure)
    if found.kind in _NEVER:
        return False
    if found.kind in _NAMES:
        return _by_name(failure, found)
    if found.kind in _ABSENCE:
        return _by_absence(failure, found)
    if _ONLY_TOGETHER.search(failure.said) or _TIMES.search(found.kind):
        return True
    if found.kind in _FILES:
        return bool(_PER_RANK.search(found.message)) or _counts(failure, found.own)
    if _DATA.match(found.kind) and not _CHECK.match(found.own.code):
        return False
    return _by_size(failure, found) if found.kind in _BY_SIZE else _by_value(failure, found)


def _without_traceback(failure: TrialFailure) -> bool:
    if _MISSPELT.search(failure.said):
        return False
    if _ONLY_TOGETHER.search(failure.said):
        return True
    rows = "\n".join((failure.said, *failure.logs)).splitlines()
    return not any(_SAID_BY_TOOLS.search(row) for row in rows)


def _by_name(failure: TrialFailure, found: TracebackSummary) -> bool:
    """A name that is given a value only where there are several processes."""
    named = _NAMED.search(found.message)
    text = failure.read(found.own.file)
    if named is None or (found.kind == "NameError" and text is None):
        return False
    above = conditions_of_name(text, named[1]) if text is not None else None
    return bool(_COUNTS.search(above)) if above is not None else text is None and bool(_OF_PEERS.search(named[1]))


def _by_absence(failure: TrialFailure, found: TracebackSummary) -> bool:
    if _OF_WRAPPERS.search(found.message) and not _WRAPPED.search(found.message):
        return True
    return "NoneType" in found.message and _counts(failure, found.own)


def _by_size(failure: TrialFailure, found: TracebackSummary) -> bool:
    own, last = found.own, found.frames[-1]
    if _OF_TENSORS.search(found.error):
        return False
    if _counts(failure, own) or _GROUPING.search(last.file) or _NEEDS_DEVICES.search(own.code):
        return True
    if not last.own or (found.kind == "KeyError" and _QUOTED.match(found.message)):
        # The index is inside an operator, or a name is looked up.
        return False
    return _slice(failure, own) is None


def _by_value(failure: TrialFailure, found: TracebackSummary) -> bool:
    last, own = found.frames[-1], found.own
    mine = [f.code for f in found.frames if f.own] or [last.code]
    if _GROUPING.search(last.file) or _NEEDS_DEVICES.search(mine[-1]) or _counts(failure, own):
        return True
    if any(_COUNTS_PEERS.search(code) for code in mine if _CHECK.match(code)):
        return True
    if "loading state_dict" in found.message:
        return _other_sharding(failure)
    here = _slice(failure, last)
    if not (_CHECK.match(last.code) or (here is not None and here.explicit)):
        return bool(_FOR_MANY.search(last.file)) and not last.own and "-packages/torch/" not in last.file
    return not _cleared(failure, found, here)


def _cleared(failure: TrialFailure, found: TracebackSummary, here: Slice | None) -> bool:
    """Of a check: that it asks for nothing which more processes change."""
    last = found.frames[-1]
    if _PLAIN.search(last.file) or _SAID_PLAINLY.search(found.message):
        return True
    if here is None or here.open or _FOR_MANY.search(last.file) or _counts(failure, last):
        return False
    callers = [frame for frame in found.frames[-3:-1] if frame.own]
    return not any(_COUNTS_PEERS.search(frame.code) for frame in callers)


def _counts(failure: TrialFailure, frame: Frame) -> bool:
    """Whether the statement of a frame rests on a count of peers, by its own words or by its source."""
    here = _slice(failure, frame)
    if here is None:
        return bool(_COUNTS_PEERS.search(frame.code))
    return bool(_COUNTS_PEERS.search(here.statement) or _COUNTS.search(here.behind))


def _slice(failure: TrialFailure, frame: Frame) -> Slice | None:
    text = None if frame.file.startswith("<") else failure.read(frame.file)
    return slice_at(text, frame.line) if text is not None else None


def _other_sharding(failure: TrialFailure) -> bool:
    """Weights of a checkpoint that are whole parts of the model's, or that were saved of a wrapped model."""
    whole = "\n".join(failure.logs)
    pairs = [(_sizes(m[1]), _sizes(m[2])) for m in _SHAPES.finditer(whole)]
    return bool(_MODULE_KEY.search(whole)) or any(_share(a, b) or _share(b, a) for a, b in pairs)


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size.strip()]


def _share(part: list[int], whole: list[int]) -> bool:
    """[6400, 512] of [51200, 512]: one dimension in 2, 4, 8, ... parts."""
    if len(part) != len(whole):
        return False
    ratios = [b / a for a, b in zip(part, whole, strict=True) if a and a != b]
    return len(ratios) == 1 and ratios[0] in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
