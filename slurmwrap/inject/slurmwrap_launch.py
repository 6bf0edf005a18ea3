"""Launchers' command lines on one GPU: turns torchrun's, accelerate's or deepspeed's argv into one process.

Runs inside the user's Python before the launcher reads sys.argv, and in the static check. Python 3.6 syntax, standard
library, imports nothing but sys and os. Tables after torch/distributed/run.py, accelerate/commands/launch.py and
deepspeed/launcher/runner.py; a test holds the first against torch's own parser. '-' in a name is turned into '_'.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, List, Optional, Tuple


def _words(text: str) -> "FrozenSet[str]":
    return frozenset(text.split())


# kind -> options without a value. Whatever is not named here takes one.
FLAGS: "Dict[str, FrozenSet[str]]" = {
    "torchrun": _words("standalone module m no_python run_path use_env virtual_local_rank help h"),
    "accelerate": _words(
        """cpu multi_gpu tpu ipex mps use_xpu use_deepspeed use_fsdp use_parallelism_config use_megatron_lm quiet q
        dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation module m no_python debug
        tpu_cluster no_tpu_cluster tpu_use_sudo same_network enable_cpu_affinity help h"""
    ),
    "deepspeed": _words(
        """force_multi module no_python no_local_rank no_ssh no_ssh_check save_pid bind_cores_to_rank
        elastic_training help h"""
    ),
}

# kind -> options that say how many, where, or how the processes find each other
DROPPED: "Dict[str, FrozenSet[str]]" = {
    "torchrun": _words(
        """nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone max_restarts node_rank
        master_addr master_port local_addr log_dir redirects r tee t local_ranks_filter"""
    ),
    "accelerate": _words(
        """num_processes num_machines machine_rank main_process_ip main_process_port multi_gpu tpu same_network
        gpu_ids rdzv_backend rdzv_conf max_restarts log_dir role tee local_ranks_filter"""
    ),
    "deepspeed": _words(
        """hostfile H include i exclude e num_nodes num_gpus master_port master_addr launcher launcher_args force_multi
        elastic_training min_elastic_nodes max_elastic_nodes node_rank no_ssh no_ssh_check ssh_port"""
    ),
}

# Known options with a value that are kept: an abbreviation of these must not be taken for a dropped one.
KEPT = _words("monitor_interval start_method event_log_handler role logs_specs numa_binding signals_to_handle")

ONE: "Dict[str, List[str]]" = {
    "torchrun": ["--standalone", "--nnodes=1", "--nproc_per_node=1"],
    "accelerate": ["--num_processes=1", "--num_machines=1", "--machine_rank=0"],
    "deepspeed": ["--hostfile=/dev/null", "--num_nodes=1", "--num_gpus=1"],
}

_SCRIPTS = {"torchrun": "torchrun", "accelerate-launch": "accelerate", "deepspeed": "deepspeed", "ds": "deepspeed"}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
}


def launcher(argv: "List[str]", module: "Optional[str]" = None) -> "Optional[Tuple[str, int]]":
    """(kind, index of its first option) when `argv` starts a launcher; `module` is what follows python's -m."""
    if module is not None:
        if module == "accelerate.commands.accelerate_cli":
            return ("accelerate", 2) if argv[1:2] == ["launch"] else None
        kind = _MODULES.get(module)
    else:
        name = os.path.basename(argv[0]) if argv else ""
        if name == "accelerate":
            return ("accelerate", 2) if argv[1:2] == ["launch"] else None
        kind = _SCRIPTS.get(name)
    return (kind, 1) if kind else None


def split(kind: str, arguments: "List[str]") -> "Tuple[List[Tuple[str, List[str]]], List[str]]":
    """([(option, its words)], the script or module with its own arguments)."""
    options: "List[Tuple[str, List[str]]]" = []
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


def _is_script(word: str) -> bool:
    # The value of an option never looks like this; a flag we do not know may stand before the script.
    return word.endswith(".py")


def _full(kind: str, name: str) -> str:
    # argparse takes any unambiguous beginning of a long option.
    known = FLAGS[kind] | DROPPED[kind] | KEPT
    if name in known or len(name) < 3:
        return name
    fitting = [full for full in known if full.startswith(name)]
    return fitting[0] if len(fitting) == 1 else name


def on_one_gpu(kind: str, arguments: "List[str]") -> "List[str]":
    """The launcher's arguments for one process on this node; the script's own arguments stay as they are."""
    options, rest = split(kind, arguments)
    kept = [word for name, words in options if name not in DROPPED[kind] for word in words]
    return ONE[kind] + kept + rest


def rewrite(argv: "Optional[List[str]]" = None, module: "Optional[str]" = None) -> bool:
    """Changes sys.argv in place when this process is a launcher. True when it did."""
    argv = sys.argv if argv is None else argv
    found = launcher(argv, module)
    if found is None:
        return False
    kind, first = found
    argv[first:] = on_one_gpu(kind, argv[first:])
    return True


def module_of(cmdline: "List[str]") -> "Optional[str]":
    """What follows -m in the interpreter's own command line (`python -u -m torch.distributed.run ...`), or None."""
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
            if letter in "WX":  # takes the rest of the word, or the next one
                at += 0 if word[position + 1 :] else 1
                break
        at += 1
    return None


def own_cmdline() -> "List[str]":
    """This process's command line as the kernel has it: sys.orig_argv exists only since Python 3.10."""
    with open("/proc/self/cmdline", "rb") as stream:
        return [os.fsdecode(word) for word in stream.read().split(b"\0")[:-1]]


class _Finder(object):
    """Python < 3.8 has no sys.argv yet when sitecustomize runs: waits for the launcher's own import."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in _MODULES and hasattr(sys, "argv"):
            sys.meta_path.remove(self)
            try:
                rewrite(module=module_of(own_cmdline()))
            except Exception:
                pass


def install() -> None:
    """Called once per process by sitecustomize in a pre-run."""
    if hasattr(sys, "argv"):
        rewrite(module=module_of(own_cmdline()))
    else:
        sys.meta_path.insert(0, _Finder())
