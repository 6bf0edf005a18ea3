"""Rewrite the command lines of launchers (torchrun, accelerate, deepspeed ...) in a trial to one process per GPU.

Runs inside the user's Python before the launcher reads sys.argv, and in the static checks. Python 3.6 syntax, standard
library; imports only sys and os (and socket in a launcher that needs a port). The tables follow
torch/distributed/run.py, accelerate/commands/launch.py, deepspeed/launcher/runner.py, composer/cli/launcher.py,
lightning_fabric/cli.py and colossalai/cli/launcher; tests compare the first two with the packages' own parsers.
Option names are written with '_' instead of '-'.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, List, Optional, Tuple


def _words(text: str) -> "FrozenSet[str]":
    return frozenset(text.split())


# Kind of launcher -> options without a value. All other options take a value.
FLAGS: "Dict[str, FrozenSet[str]]" = {
    "torchrun": _words("standalone module m no_python run_path use_env virtual_local_rank help h"),
    "accelerate": _words(
        """cpu multi_gpu tpu ipex mps use_xpu use_deepspeed use_fsdp use_parallelism_config use_megatron_lm quiet q
        dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation module m no_python debug
        tpu_cluster no_tpu_cluster tpu_use_sudo same_network enable_cpu_affinity downcast_bf16
        fp8_use_autocast_during_eval help h"""
    ),
    "deepspeed": _words(
        """force_multi module no_python no_local_rank no_ssh no_ssh_check save_pid bind_cores_to_rank
        elastic_training help h"""
    ),
    "composer": _words("version verbose v module_mode m command_mode c help h"),
    "fabric": _words("help"),
    "colossalai": _words("m help"),
}

# Kind -> options that are removed: the number and location of the processes, and how they find each other.
DROPPED: "Dict[str, FrozenSet[str]]" = {
    "torchrun": _words(
        """nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone max_restarts node_rank
        master_addr master_port local_addr log_dir redirects r tee t local_ranks_filter"""
    ),
    "accelerate": _words(
        """num_processes num_machines machine_rank main_process_ip main_process_port multi_gpu tpu same_network
        gpu_ids rdzv_backend rdzv_conf max_restarts log_dir role tee t local_ranks_filter deepspeed_hostfile
        deepspeed_inclusion_filter deepspeed_exclusion_filter deepspeed_multinode_launcher mpirun_hostfile"""
    ),
    "deepspeed": _words(
        """hostfile H include i exclude e num_nodes num_gpus master_port master_addr launcher launcher_args force_multi
        elastic_training min_elastic_nodes max_elastic_nodes node_rank no_ssh no_ssh_check ssh_port num_accelerators
        enable_each_rank_log autotuning comment account"""
    ),
    "composer": _words("n nproc world_size base_rank node_rank master_addr master_port stdout stderr"),
    "fabric": _words("devices num_nodes node_rank main_address main_port"),
    "colossalai": _words(
        """H host hostfile include exclude num_nodes nproc_per_node master_port master_addr extra_launch_args
        ssh_port"""
    ),
}

# Known options with a value that are kept, so that an abbreviation of one is not taken for a removed option.
KEPT = _words("monitor_interval start_method event_log_handler role logs_specs numa_binding signals_to_handle")

# Kind -> options with the number of processes; the trial never starts more than requested.
_COUNTS = {
    "torchrun": ("nproc_per_node",),
    "accelerate": ("num_processes",),
    "deepspeed": ("num_gpus", "num_accelerators"),
    "composer": ("n", "nproc"),
    "fabric": ("devices",),
    "colossalai": ("nproc_per_node",),
}


def _shape(kind: str, count: int, port: int, visible: str) -> "List[str]":
    """Return the options for `count` processes on this node. `visible`: the value of CUDA_VISIBLE_DEVICES."""
    if kind == "torchrun":
        return ["--standalone", "--nnodes=1", "--nproc_per_node=%d" % count]
    # The command line overrides the settings in accelerate's configuration file.
    if kind == "accelerate":
        here = ["--num_processes=%d" % count, "--num_machines=1", "--machine_rank=0", "--gpu_ids=all"]
        return here + ["--rdzv_backend=static", "--main_process_port=%d" % port]
    # With --num_gpus deepspeed ignores CUDA_VISIBLE_DEVICES and would use the GPU of another job.
    if kind == "deepspeed":
        return ["--hostfile=/dev/null", "--master_port=%d" % port] + ([] if visible else ["--num_gpus=%d" % count])
    if kind == "composer":
        ranks = ["--nproc=%d" % count, "--world_size=%d" % count, "--node_rank=0", "--base_rank=0"]
        return ranks + ["--master_addr=127.0.0.1", "--master_port=%d" % port]
    if kind == "fabric":
        return ["--devices=%d" % count, "--num_nodes=1", "--main_port=%d" % port]
    return ["--nproc_per_node=%d" % count, "--master_port=%d" % port]


_SCRIPTS = {
    "torchrun": "torchrun",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
    "ds": "deepspeed",
    "composer": "composer",
}
# Program -> (kind, the subcommand that makes it a launcher).
_COMMANDS = {
    "accelerate": ("accelerate", ["launch"]),
    "fabric": ("fabric", ["run"]),
    "lightning": ("fabric", ["run", "model"]),
    "colossalai": ("colossalai", ["run"]),
    "accelerate.commands.accelerate_cli": ("accelerate", ["launch"]),
    "lightning_fabric.cli": ("fabric", ["run"]),
    "lightning.fabric.cli": ("fabric", ["run"]),
    "colossalai.cli": ("colossalai", ["run"]),
}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "composer": "composer",
    "composer.cli": "composer",
    "composer.cli.launcher": "composer",
}


# Modules that a launcher imports before it reads its command line.
_IMPORTED = frozenset(_MODULES) | {"accelerate.commands.accelerate_cli", "lightning_fabric.cli", "lightning.fabric.cli"}


def launcher(argv: "List[str]", module: "Optional[str]" = None) -> "Optional[Tuple[str, int]]":
    """Return (kind, index of the first option) if `argv` starts a launcher, else None. `module`: that of python -m."""
    name = module if module is not None else os.path.basename(argv[0]) if argv else ""
    if name in _COMMANDS:
        kind, words = _COMMANDS[name]
        if argv[1 : 1 + len(words)] == words:
            return kind, 1 + len(words)
        return None
    found = (_SCRIPTS if module is None else _MODULES).get(name)
    return (found, 1) if found else None


def split(kind: str, arguments: "List[str]") -> "Tuple[List[Tuple[str, List[str]]], List[str]]":
    """Return ([(option, its words)], the script or module with its own arguments)."""
    options: "List[Tuple[str, List[str]]]" = []
    arguments = _move_options_first(kind, arguments)
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            return options, arguments[at + 1 :]
        if not word.startswith("-") or word == "-":
            break
        name, equals, _ = word.lstrip("-").partition("=")
        name = _full(kind, name.replace("-", "_"))
        if equals or name in FLAGS[kind] or arguments[at + 1 : at + 2] == [] or _is_script(arguments[at + 1]):
            length = 1
        else:
            length = 2
        options.append((name, arguments[at : at + length]))
        at += length
    return options, arguments[at:]


# Kind -> options with a value that the launcher takes from behind the script as well, as click does by default.
_ANYWHERE = {"fabric": _words("accelerator strategy devices num_nodes node_rank main_address main_port precision")}


def _move_options_first(kind: str, arguments: "List[str]") -> "List[str]":
    """Return the arguments with the launcher's own options in front of the script."""
    own: "List[str]" = []
    rest: "List[str]" = []
    at = 0
    while at < len(arguments) and arguments[at] != "--":
        name, equals, _ = arguments[at].partition("=")
        known = name.startswith("--") and name[2:].replace("-", "_") in _ANYWHERE.get(kind, ())
        length = 2 if known and not equals else 1
        (own if known else rest).extend(arguments[at : at + length])
        at += length
    return own + rest + arguments[at:]


def _is_script(word: str) -> bool:
    # No option has such a value, so the option before it is an unknown flag and this word is the script.
    return word.endswith(".py")


def _full(kind: str, name: str) -> str:
    # argparse accepts any unambiguous prefix of a long option.
    known = FLAGS[kind] | DROPPED[kind] | KEPT
    if name in known or len(name) < 3:
        return name
    fitting = [full for full in known if full.startswith(name)]
    return fitting[0] if len(fitting) == 1 else name


def on_one_gpu(kind: str, arguments: "List[str]", gpus: int = 1, port: int = 0, visible: str = "") -> "List[str]":
    """Return the launcher's arguments for at most `gpus` processes on this node. The script's arguments do not change.

    `port`: a free port, for launchers that cannot find one. `visible`: the value of CUDA_VISIBLE_DEVICES.
    """
    options, rest = split(kind, arguments)
    count = _processes(kind, options, gpus)
    dropped = DROPPED[kind] - {"multi_gpu"} if kind == "accelerate" and count > 1 else DROPPED[kind]
    kept = [word for name, words in options if name not in dropped for word in words]
    return _shape(kind, count, port, visible) + kept + rest


def _processes(kind: str, options: "List[Tuple[str, List[str]]]", gpus: int) -> int:
    for name, words in reversed(options):
        value = words[-1].partition("=")[2] if "=" in words[-1] else words[-1]
        if name in _COUNTS[kind] and value.isdigit():
            return max(1, min(int(value), gpus))
    return gpus


def rewrite(argv: "Optional[List[str]]" = None, module: "Optional[str]" = None) -> bool:
    """Change sys.argv in place if this process is a launcher. Return whether it was changed."""
    argv = sys.argv if argv is None else argv
    found = launcher(argv, module)
    if found is None:
        return False
    kind, first = found
    gpus = int(os.environ.get("SLURMWRAP_TRIAL_GPUS") or 1)
    port = 0 if kind == "torchrun" else _free_port()
    argv[first:] = on_one_gpu(kind, argv[first:], gpus, port, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    # torchrun also reads its options from PET_* variables, which accelerate and Fabric pass on to it.
    for name in DROPPED["torchrun"]:
        os.environ.pop("PET_" + name.upper(), None)
    return True


def _free_port() -> int:
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


def keep_devices() -> None:
    """Restore the devices that Slurm gave the trial if the script has set others.

    For example `export CUDA_VISIBLE_DEVICES=0,1,2,3` in a script for a whole node. A subset of the trial's devices is
    kept, and so is an empty selection ("" or -1).
    """
    for name in _VISIBLE:
        given, now = os.environ.get("SLURMWRAP_" + name), os.environ.get(name)
        if given and now and now != "-1" and not set(now.split(",")) <= set(given.split(",")):
            os.environ[name] = given


def module_of(cmdline: "List[str]") -> "Optional[str]":
    """Return the module after -m in the interpreter's command line (`python -u -m torch.distributed.run`), or None."""
    at = 1
    while at < len(cmdline) and cmdline[at].startswith("-") and len(cmdline[at]) > 1:
        word = cmdline[at]
        if word.startswith("--"):
            at += 2 if word == "--check-hash-based-pycs" else 1
            continue
        for position, letter in enumerate(word[1:], 1):
            if letter == "m":
                return word[position + 1 :] or (cmdline[at + 1] if at + 1 < len(cmdline) else None)
            if letter == "c":
                return None
            # These options take the rest of the word or the next word as their value.
            if letter in "WX":
                at += 0 if word[position + 1 :] else 1
                break
        at += 1
    return None


def own_cmdline() -> "List[str]":
    """Return the command line of this process from the kernel, because sys.orig_argv exists only since Python 3.10."""
    with open("/proc/self/cmdline", "rb") as stream:
        return [os.fsdecode(word) for word in stream.read().split(b"\0")[:-1]]


class _Finder(object):
    """A finder that rewrites sys.argv at the launcher's first import.

    Needed for Python < 3.8, which has no sys.argv yet when sitecustomize runs.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in _IMPORTED and hasattr(sys, "argv"):
            sys.meta_path.remove(self)
            try:
                rewrite(module=module_of(own_cmdline()))
            except Exception:
                pass


def install() -> None:
    """Restore the devices and rewrite sys.argv. sitecustomize calls this once per process in a pre-run."""
    keep_devices()
    if hasattr(sys, "argv"):
        rewrite(module=module_of(own_cmdline()))
    else:
        sys.meta_path.insert(0, _Finder())
