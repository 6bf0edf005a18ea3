"""Endings of trials in the words of real software, and the verdict of each.

`fail` if the real job would fail as well, `inconclusive` if one GPU, one node or the pre-run may have made the
difference.
"""

# ruff: noqa: E501  (messages of software are not wrapped)

from __future__ import annotations

import re
from collections.abc import Callable

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.model.verdict import Verdict
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge

FAIL, INCONCLUSIVE, PASS = "fail", "inconclusive", "pass"

SITE = "/home/u/venv/lib/python3.11/site-packages"


def tb(error: str, *frames: tuple[str, int, str, str]) -> str:
    """A traceback: frames of (file, line, function, code)."""
    rows = [f'  File "{file}", line {line}, in {name}\n    {code}\n' for file, line, name, code in frames]
    return "Traceback (most recent call last):\n" + "".join(rows) + error + "\n"


def own(error: str, code: str = "main()", name: str = "<module>") -> str:
    """The traceback of an error in the user's own code."""
    return tb(error, ("/w/train.py", 88, "<module>", "main()"), ("/w/train.py", 41, name, code))


def inside(error: str, module: str, code: str, own_code: str = "loss = model(batch)") -> str:
    """The traceback of an error in a library that the user's code calls."""
    return tb(error, ("/w/train.py", 57, "train", own_code), (f"{SITE}/{module}", 1190, "forward", code))


def torchrun(text: str) -> str:
    """Adds what torchrun prints after the traceback of the rank."""
    ranked = "".join(f"[rank0]: {row}\n" for row in text.splitlines())
    return (
        ranked + "E1121 07:40:17.100 4242 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1)"
        " (pid: 4251) of binary: /home/u/venv/bin/python\n"
        + tb(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
            "============================================================\ntrain.py FAILED\n"
            "------------------------------------------------------------",
            ("/home/u/venv/bin/torchrun", 8, "<module>", "sys.exit(main())"),
            (f"{SITE}/torch/distributed/run.py", 919, "run", "elastic_launch("),
        )
    )


def make_source_reader(text: str) -> Callable[[str], str | None]:
    """A reader of the user's files in a traceback; the files contain only the lines that it shows."""
    files: dict[str, list[str]] = {}
    for file, line, code in re.findall(r'File "(/w/[^"]+)", line (\d+), in .*\n(?:\[rank0\]: )? +(.+)', text):
        rows = files.setdefault(file, [""] * 2000)
        rows[int(line) - 1] = code
    return {file: "\n".join(rows) for file, rows in files.items()}.get


Ending = tuple[str, str, str, int, int]

ENDINGS: tuple[Ending, ...] = (
    # --- errors in the user's own code: one GPU shows them -----------------------------------------------------------
    (
        "shape",
        FAIL,
        torchrun(
            inside(
                "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 768x10)",
                "torch/nn/modules/linear.py",
                "return F.linear(input, self.weight, self.bias)",
            )
        ),
        1,
        16,
    ),
    ("name error", FAIL, own("NameError: name 'optimzer' is not defined", "optimzer.step()"), 1, 16),
    ("attribute", FAIL, own("AttributeError: 'Namespace' object has no attribute 'warmup'", "args.warmup"), 1, 16),
    ("import", FAIL, own("ModuleNotFoundError: No module named 'flash_attn'", "import flash_attn"), 1, 16),
    (
        "import name",
        FAIL,
        own(
            "ImportError: cannot import name 'AdamW' from 'transformers' (/v/transformers/__init__.py)",
            "from transformers import AdamW",
        ),
        1,
        16,
    ),
    (
        "glibc",
        FAIL,
        own(
            "ImportError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by /v/x.so)",
            "import pandas",
        ),
        1,
        16,
    ),
    (
        "argparse",
        FAIL,
        "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --learning-rate 3e-4\n",
        2,
        16,
    ),
    (
        "argparse missing",
        FAIL,
        "usage: train.py [-h] --data DATA\ntrain.py: error: the following arguments are required: --data\n",
        2,
        16,
    ),
    (
        "argparse choice",
        FAIL,
        "train.py: error: argument --opt: invalid choice: 'adamq' (choose from 'adam', 'sgd')\n",
        2,
        16,
    ),
    (
        "click",
        FAIL,
        "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\nError: No such option: --epoch\n",
        2,
        16,
    ),
    (
        "hydra",
        FAIL,
        "Could not override 'optim.lrr'.\nTo append to your config use +optim.lrr=1\n"
        "Key 'lrr' is not in struct\n    full_key: optim.lrr\n    object_type=dict\n",
        1,
        16,
    ),
    (
        "torchrun option",
        FAIL,
        "usage: torchrun [-h] [--nnodes NNODES]\ntorchrun: error: unrecognized arguments: --nproc-per-nod=8\n",
        2,
        16,
    ),
    (
        "missing script",
        FAIL,
        "/home/u/venv/bin/python: can't open file '/w/trian.py': [Errno 2] No such file or directory\n",
        2,
        16,
    ),
    (
        "missing data",
        FAIL,
        own("FileNotFoundError: [Errno 2] No such file or directory: '/proj/data/train.bin'", "data = np.memmap(path)"),
        1,
        16,
    ),
    (
        "permission",
        FAIL,
        own("PermissionError: [Errno 13] Permission denied: '/proj/other/out'", "os.makedirs(out)"),
        1,
        16,
    ),
    ("command not found", FAIL, "/var/spool/slurmd/job7/slurm_script: line 9: pyhton: command not found\n", 127, 16),
    ("syntax of shell", FAIL, "/t/script: line 12: syntax error near unexpected token `fi'\n", 2, 16),
    ("unbound", FAIL, "/t/script: line 4: DATA_DIR: unbound variable\n", 1, 16),
    ("bad substitution", FAIL, "/t/script: 4: Bad substitution\n", 2, 16),
    ("not executable", FAIL, "/t/script: line 7: ./run.sh: Permission denied\n", 126, 16),
    ("cd", FAIL, "/t/script: line 3: cd: /w/experimnts: No such file or directory\n", 1, 16),
    (
        "conda activate",
        FAIL,
        "\nEnvironmentNameNotFound: Could not find conda environment: bert-new\nYou can list all "
        "discoverable environments with `conda info --envs`.\n",
        1,
        16,
    ),
    (
        "module",
        FAIL,
        'Lmod has detected the following error:  The following module(s) are unknown: "cuda/13.9"\n\nPlease '
        "check the spelling or version number.\n",
        1,
        16,
    ),
    (
        "device-side assert",
        FAIL,
        "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: "
        "[0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
        + own("RuntimeError: CUDA error: device-side assert triggered", "loss.backward()"),
        1,
        16,
    ),
    (
        "dtype",
        FAIL,
        inside(
            "RuntimeError: expected scalar type Half but found Float",
            "torch/nn/functional.py",
            "return torch.layer_norm(input)",
        ),
        1,
        16,
    ),
    (
        "same device",
        FAIL,
        inside(
            "RuntimeError: Expected all tensors to be on the same device, but found at least two "
            "devices, cuda:0 and cpu!",
            "torch/nn/modules/linear.py",
            "return F.linear(input, self.weight)",
        ),
        1,
        16,
    ),
    (
        "in-place grad",
        FAIL,
        inside(
            "RuntimeError: one of the variables needed for gradient computation has been modified by "
            "an inplace operation: [torch.cuda.FloatTensor [64]] is at version 3",
            "torch/autograd/graph.py",
            "return run()",
            "loss.backward()",
        ),
        1,
        16,
    ),
    (
        "backward twice",
        FAIL,
        inside(
            "RuntimeError: Trying to backward through the graph a second time (or directly access "
            "saved tensors after they have already been freed).",
            "torch/autograd/graph.py",
            "run()",
            "loss.backward()",
        ),
        1,
        16,
    ),
    (
        "nan assertion",
        FAIL,
        own("AssertionError: loss is nan at step 1", "assert torch.isfinite(loss), 'loss is nan'"),
        1,
        16,
    ),
    (
        "state dict",
        FAIL,
        inside(
            "RuntimeError: Error(s) in loading state_dict for GPT:\n\tsize mismatch for wte.weight: copying"
            " a param with shape torch.Size([50304, 768]) from checkpoint",
            "torch/nn/modules/module.py",
            "raise RuntimeError(",
            "model.load_state_dict(state)",
        ),
        1,
        16,
    ),
    (
        "ddp unused",
        FAIL,
        torchrun(
            inside(
                "RuntimeError: Expected to have finished reduction in the prior iteration before "
                "starting a new one. This error indicates that your module has parameters that were not used in producing loss.",
                "torch/nn/parallel/distributed.py",
                "if self._pre_forward()",
                "out = ddp(x)",
            )
        ),
        1,
        16,
    ),
    (
        "worker",
        FAIL,
        inside(
            "RuntimeError: Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent "
            'call last):\n  File "/w/data.py", line 31, in __getitem__\n    img = Image.open(path).resize(0)\nValueError: bad '
            "size",
            "torch/_utils.py",
            "raise exception",
            "for batch in loader:",
        ),
        1,
        16,
    ),
    (
        "json config",
        FAIL,
        own(
            "json.decoder.JSONDecodeError: Expecting ',' delimiter: line 4 column 3 (char 61)", "config = json.load(f)"
        ),
        1,
        16,
    ),
    (
        "yaml config",
        FAIL,
        own("yaml.scanner.ScannerError: mapping values are not allowed here", "yaml.safe_load(f)"),
        1,
        16,
    ),
    (
        "syntax error",
        FAIL,
        "  File \"/w/train.py\", line 17\n    for x in loader\n                   ^\nSyntaxError: expected ':'\n",
        1,
        16,
    ),
    (
        "hf arguments",
        FAIL,
        own(
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
            "args = TrainingArguments(evaluation_strategy='no')",
        ),
        1,
        16,
    ),
    (
        "hf precision",
        FAIL,
        own(
            "ValueError: --load_best_model_at_end requires the save and eval strategy to match, but found\n"
            "- Evaluation strategy: no\n- Save strategy: steps",
            "args = TrainingArguments()",
        ),
        1,
        16,
    ),
    (
        "lightning",
        FAIL,
        own(
            "lightning.fabric.utilities.exceptions.MisconfigurationException: No `training_step()` method "
            "defined. Lightning `Trainer` expects as minimum",
            "trainer.fit(model)",
        ),
        1,
        16,
    ),
    (
        "keras shape",
        FAIL,
        inside(
            'ValueError: Input 0 of layer "dense" is incompatible with the layer: expected axis -1 of '
            "input shape to have value 784, but received input with shape (32, 28, 28)",
            "keras/src/layers/input_spec.py",
            "raise ValueError(",
            "model.fit(x, y)",
        ),
        1,
        16,
    ),
    (
        "jax shape",
        FAIL,
        inside(
            "TypeError: dot_general requires contracting dimensions to have the same shape, got (784,) and (512,).",
            "jax/_src/lax/lax.py",
            "raise TypeError(",
            "state = train_step(state)",
        ),
        1,
        16,
    ),
    (
        "one gpu oom",
        FAIL,
        inside(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
            "capacity of 79.15 GiB of which 1.2 GiB is free.",
            "torch/nn/functional.py",
            "return torch.relu(x)",
        ),
        1,
        1,
    ),
    ("hidden crash", FAIL, own("KeyError: 'text'", "batch['text']") + "finished\n", 0, 16),
    (
        "segfault",
        FAIL,
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        '  File "/w/ext.py", line 12 in forward\n  File "/w/train.py", line 20 in <module>\n'
        "/t/script: line 4: 4242 Segmentation fault      (core dumped) python train.py\n",
        139,
        1,
    ),
    (
        "batch size env",
        FAIL,
        own("ValueError: invalid literal for int() with base 10: 'auto'", "bs = int(os.environ['BS'])"),
        1,
        16,
    ),
    ("env var missing", FAIL, own("KeyError: 'WANDB_PROJECT'", "os.environ['WANDB_PROJECT']"), 1, 16),
    (
        "deepspeed json",
        FAIL,
        own(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig\n"
            "stage\n  Input should be less than or equal to 3",
            "model_engine = deepspeed.initialize(args=args)",
        ),
        1,
        16,
    ),
    ("vocabulary", FAIL, own("IndexError: index out of range in self", "emb = self.emb(tokens)", "forward"), 1, 16),
    (
        "num samples 0",
        FAIL,
        inside(
            "ValueError: num_samples should be a positive integer value, but got num_samples=0",
            "torch/utils/data/sampler.py",
            "raise ValueError(",
            "loader = DataLoader(data, shuffle=True)",
        ),
        1,
        16,
    ),
    ("recursion", FAIL, own("RecursionError: maximum recursion depth exceeded", "return self.f(x)", "f"), 1, 16),
    # --- errors that one GPU cannot prove ----------------------------------------------------------------------------
    (
        "gpu oom sharded",
        INCONCLUSIVE,
        inside(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 GiB. GPU 0 has"
            " a total capacity of 79.15 GiB",
            "torch/distributed/fsdp/_flat_param.py",
            "torch.empty()",
        ),
        1,
        16,
    ),
    (
        "jax oom",
        INCONCLUSIVE,
        own(
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
            "allocate 42949672960 bytes.",
            "state = step(state)",
        ),
        1,
        8,
    ),
    (
        "tf oom",
        INCONCLUSIVE,
        own(
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with"
            " shape[64,4096,4096]",
            "model.fit(x)",
        ),
        1,
        8,
    ),
    (
        "host oom kill",
        INCONCLUSIVE,
        "/t/script: line 6: 4242 Killed                  python train.py\nslurmstepd: error: Detected "
        "1 oom_kill event in StepId=7.batch. Some of the step tasks have been OOM Killed.\n",
        137,
        16,
    ),
    (
        "megatron world",
        INCONCLUSIVE,
        torchrun(
            inside(
                "RuntimeError: world_size (1) is not divisible by 8",
                "megatron/core/parallel_state.py",
                'raise RuntimeError(f"world_size ({world_size}) is not divisible by {model_size}")',
                "initialize_megatron()",
            )
        ),
        1,
        16,
    ),
    (
        "megatron tp",
        INCONCLUSIVE,
        own(
            "AssertionError: world size (1) is not divisible by total_model_size "
            "(encoder_model_size=0 + decoder_model_size=16)",
            "assert args.world_size % total_model_size == 0",
        ),
        1,
        16,
    ),
    (
        "megatron batch",
        INCONCLUSIVE,
        own(
            "AssertionError: global batch size (1536) is not divisible by micro batch size (5) times "
            "data parallel size (16)",
            "assert global_batch_size % (micro * dp) == 0",
        ),
        1,
        16,
    ),
    (
        "deepspeed batch",
        INCONCLUSIVE,
        inside(
            "AssertionError: Check batch related parameters. train_batch_size is not equal to "
            "micro_batch_per_gpu * gradient_acc_step * world_size 256 != 4 * 4 * 1",
            "deepspeed/runtime/config.py",
            "self._batch_assertion()",
            "deepspeed.initialize(args)",
        ),
        1,
        16,
    ),
    (
        "deepspeed pipe",
        INCONCLUSIVE,
        own("AssertionError: num_stages must divide the number of devices", "PipelineModule(layers)"),
        1,
        16,
    ),
    (
        "mesh",
        INCONCLUSIVE,
        inside(
            "RuntimeError: Mesh should not be bigger than default world size 1, but found 8 ranks!",
            "torch/distributed/device_mesh.py",
            "raise RuntimeError(",
            'init_device_mesh("cuda", (2, 4))',
        ),
        1,
        8,
    ),
    (
        "jax mesh",
        INCONCLUSIVE,
        inside(
            "ValueError: Number of devices 1 must equal the product of mesh_shape (4, 2)",
            "jax/_src/mesh_utils.py",
            "raise ValueError(",
            "mesh = mesh_utils.create_device_mesh((4, 2))",
        ),
        1,
        8,
    ),
    (
        "jax reshape",
        INCONCLUSIVE,
        own(
            "ValueError: cannot reshape array of size 1 into shape (4,2)",
            "devices = np.array(jax.devices()).reshape(4, 2)",
        ),
        1,
        8,
    ),
    (
        "torchtitan",
        INCONCLUSIVE,
        own(
            "AssertionError: Invalid parallel dims: dp_replicate(1) * dp_shard(4) * cp(1) * tp(2) * pp(1) "
            "!= WORLD_SIZE(1)",
            "self._validate()",
        ),
        1,
        8,
    ),
    (
        "accelerate parallelism",
        INCONCLUSIVE,
        own(
            "ValueError: ParallelismConfig total_size (8) does not match num_processes (1). "
            "Please adjust dp_replicate_size/ dp_shard_size/tp_size/cp_size/sp_size.",
            "accelerator = Accelerator()",
        ),
        1,
        8,
    ),
    (
        "own assert",
        INCONCLUSIVE,
        own("AssertionError", "assert torch.cuda.device_count() == 8, torch.cuda.device_count()"),
        1,
        8,
    ),
    ("own exit", INCONCLUSIVE, "This script needs 8 GPUs, found 1\n", 1, 8),
    ("own sys.exit", INCONCLUSIVE, "ERROR: expected 8 GPUs but only 1 are visible\n", 3, 8),
    ("shell count", INCONCLUSIVE, "error: SLURM_NNODES must be 2 (is 1)\n", 1, 16),
    (
        "ordinal",
        INCONCLUSIVE,
        own("torch.AcceleratorError: CUDA error: invalid device ordinal", "torch.cuda.set_device(3)"),
        1,
        8,
    ),
    (
        "device_ids",
        INCONCLUSIVE,
        inside(
            "AssertionError: Invalid device id",
            "torch/cuda/__init__.py",
            'raise AssertionError("Invalid device id")',
            "nn.DataParallel(model, device_ids=[0, 1, 2, 3])",
        ),
        1,
        4,
    ),
    (
        "lightning devices",
        INCONCLUSIVE,
        own(
            "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: "
            "[0, 1, 2, 3]\n But your machine only has: [0]",
            "trainer = Trainer(devices=4)",
        ),
        1,
        4,
    ),
    (
        "lightning slurm",
        INCONCLUSIVE,
        own(
            "ValueError: You set `--ntasks-per-node=1` in your SLURM bash script, but this must match "
            "`devices=8`. HINT: Set `devices=1`.",
            "trainer = Trainer(devices=8)",
        ),
        1,
        8,
    ),
    (
        "rendezvous host",
        INCONCLUSIVE,
        own(
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any "
            "network address of (node07, 29500). The client socket has timed out after 600000ms",
            "dist.init_process_group()",
        ),
        1,
        16,
    ),
    (
        "store timeout",
        INCONCLUSIVE,
        own(
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/16 clients joined.",
            "dist.init_process_group('nccl')",
        ),
        1,
        16,
    ),
    ("peer", INCONCLUSIVE, own("IndexError: list index out of range", "peer = group_ranks[rank + 1]"), 1, 16),
    (
        "new group",
        INCONCLUSIVE,
        inside(
            "ValueError: the new group's world size should be less or equal to the world size set by "
            "init_process_group",
            "torch/distributed/distributed_c10d.py",
            "raise ValueError(",
            "dist.new_group(range(8))",
        ),
        1,
        8,
    ),
    (
        "send",
        INCONCLUSIVE,
        inside(
            "ValueError: Invalid destination rank: destination rank should not be the same as the rank of the"
            " current process.",
            "torch/distributed/distributed_c10d.py",
            "raise ValueError(",
            "dist.send(x, dst=(rank+1)%n)",
        ),
        1,
        8,
    ),
    (
        "mpi ranks",
        INCONCLUSIVE,
        own("mpi4py.MPI.Exception: MPI_ERR_RANK: invalid rank", "comm.Send(buf, dest=1)"),
        1,
        8,
    ),
    ("mpi world size", INCONCLUSIVE, "need at least 2 MPI processes\n", 1, 8),
    (
        "vllm tp",
        INCONCLUSIVE,
        own(
            "ValueError: Tensor parallel size (4) cannot be larger than the number of available GPUs (1).",
            "LLM(model, tensor_parallel_size=4)",
        ),
        1,
        4,
    ),
    (
        "ray",
        INCONCLUSIVE,
        own("ValueError: Total available GPUs 1 is less than total desired GPUs 8", "pool.check()"),
        1,
        8,
    ),
    (
        "context parallel",
        INCONCLUSIVE,
        own("AssertionError: context parallel size 2 is not supported with world size 1", "init(cp=2)"),
        1,
        8,
    ),
    (
        "hybrid shard",
        INCONCLUSIVE,
        own(
            "ValueError: The world size 1 is not divisible by the sharding group size 8",
            "model = FSDP(model, HYBRID_SHARD)",
        ),
        1,
        16,
    ),
    (
        "moe",
        INCONCLUSIVE,
        own("AssertionError: expert parallel size 8 must divide ep world 1", "moe = MoE(ep_size=8)"),
        1,
        16,
    ),
    (
        "modulo",
        INCONCLUSIVE,
        own("ZeroDivisionError: integer division or modulo by zero", "n = total // (world_size - 1)"),
        1,
        16,
    ),
    (
        "device map",
        INCONCLUSIVE,
        own(
            "ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU"
            " RAM to fit the quantized model.",
            "AutoModelForCausalLM.from_pretrained(name, device_map='auto')",
        ),
        1,
        4,
    ),
    # --- faults of the pre-run's machine, not of the job ------------------------------------------------------------
    (
        "no kernel image",
        INCONCLUSIVE,
        own("RuntimeError: CUDA error: no kernel image is available for execution on the device", "y = ext.forward(x)"),
        1,
        16,
    ),
    (
        "flash ampere",
        INCONCLUSIVE,
        inside(
            "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
            "flash_attn/flash_attn_interface.py",
            "out = flash_attn_cuda.fwd()",
        ),
        1,
        16,
    ),
    (
        "bf16",
        INCONCLUSIVE,
        own(
            "ValueError: Your setup doesn't support bf16/gpu. You need Ampere+ GPU with cuda>=11.0",
            "args = TrainingArguments(bf16=True)",
        ),
        1,
        16,
    ),
    (
        "driver",
        INCONCLUSIVE,
        own("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "x.cuda()"),
        1,
        16,
    ),
    (
        "fp8",
        INCONCLUSIVE,
        own("AssertionError: Device compute capability 8.9 or higher required for FP8 execution.", "te.Linear()"),
        1,
        16,
    ),
    (
        "triton capability",
        INCONCLUSIVE,
        own(
            "ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes "
            "are ('fp8e4b15', 'fp8e5')",
            "kernel[grid](x)",
        ),
        1,
        16,
    ),
    (
        "ecc",
        INCONCLUSIVE,
        own("RuntimeError: CUDA error: uncorrectable ECC error encountered", "loss.backward()"),
        1,
        16,
    ),
    (
        "off the bus",
        INCONCLUSIVE,
        own("RuntimeError: CUDA error: unspecified launch failure", "loss.backward()")
        + "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n",
        1,
        16,
    ),
    (
        "scratch data",
        INCONCLUSIVE,
        own(
            "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/local/imagenet/train'",
            "os.listdir(root)",
        ),
        1,
        16,
    ),
    (
        "tmp data",
        INCONCLUSIVE,
        own("FileNotFoundError: [Errno 2] No such file or directory: '/local_scratch/4711/data.h5'", "h5py.File(path)"),
        1,
        16,
    ),
    (
        "hub unreachable",
        INCONCLUSIVE,
        inside(
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and "
            "couldn't find them in the cached files.",
            "transformers/utils/hub.py",
            "raise OSError(",
            "AutoModel.from_pretrained('bert')",
        ),
        1,
        16,
    ),
    (
        "dns",
        INCONCLUSIVE,
        own("urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>", "urlopen(url)"),
        1,
        16,
    ),
    (
        "proxy",
        INCONCLUSIVE,
        own(
            "requests.exceptions.ProxyError: HTTPSConnectionPool(host='api.wandb.ai', port=443): Max retries exceeded",
            "wandb.login()",
        ),
        1,
        16,
    ),
    (
        "licence",
        INCONCLUSIVE,
        "License checkout failed.\nLicense Manager Error -15\nUnable to connect to the license server.\n",
        1,
        16,
    ),
    ("disk full", INCONCLUSIVE, own("OSError: [Errno 28] No space left on device", "torch.save(state, path)"), 1, 16),
    (
        "quota",
        INCONCLUSIVE,
        own("OSError: [Errno 122] Disk quota exceeded: 'ckpt.pt'", "torch.save(state, path)"),
        1,
        16,
    ),
    ("nfs", INCONCLUSIVE, own("OSError: [Errno 116] Stale file handle", "data = f.read()"), 1, 16),
    ("too many files", INCONCLUSIVE, own("OSError: [Errno 24] Too many open files", "f = open(path)"), 1, 16),
    (
        "shm",
        INCONCLUSIVE,
        inside(
            "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory.",
            "torch/utils/data/dataloader.py",
            "raise RuntimeError(",
            "for batch in loader:",
        ),
        1,
        16,
    ),
    (
        "port taken",
        INCONCLUSIVE,
        own(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
            "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "dist.init_process_group()",
        ),
        1,
        16,
    ),
    # --- caused by the pre-run itself --------------------------------------------------------------------------------
    (
        "our hook",
        INCONCLUSIVE,
        tb(
            "ValueError: not enough values to unpack",
            ("/w/train.py", 9, "<module>", "opt.step()"),
            ("/home/u/.local/state/slurmwrap/trials/x/inject/slurmwrap_step.py", 120, "hook", "a, b = x"),
        ),
        1,
        16,
    ),
    (
        "our guard",
        INCONCLUSIVE,
        tb(
            "TypeError: save() got an unexpected keyword argument",
            ("/w/t.py", 9, "<module>", "save(x)"),
            ("/tmp/x/inject/slurmwrap_guard.py", 12, "save", "return real(*args)"),
        ),
        1,
        1,
    ),
    (
        "our shim",
        INCONCLUSIVE,
        tb("IndexError: list index out of range", ("/opt/slurmwrap/slurmwrap/prerun/shim.py", 40, "main", "words[0]")),
        1,
        16,
    ),
    (
        "step creation",
        INCONCLUSIVE,
        "srun: error: Unable to create step for job 7: More processors requested than permitted\n",
        1,
        16,
    ),
    (
        "step nodes",
        INCONCLUSIVE,
        "srun: error: Unable to create step for job 7: Requested node configuration is not available\n",
        1,
        16,
    ),
    ("step nodelist", INCONCLUSIVE, "srun: error: Only allocated 1 nodes asked for 4\n", 1, 16),
    (
        "real sbatch",
        INCONCLUSIVE,
        "sbatch: error: Batch job submission failed: Requested reservation is invalid\n",
        1,
        16,
    ),
    (
        "slots",
        INCONCLUSIVE,
        "There are not enough slots available in the system to satisfy the 16\nslots that were requested by the "
        "application:\n\n  python\n",
        1,
        16,
    ),
    (
        "hydra proxy",
        INCONCLUSIVE,
        '[mpiexec@n1] HYDU_sock_connect: unable to connect from "n1" to "n2" (No route to host)\n',
        255,
        16,
    ),
    (
        "ssh",
        INCONCLUSIVE,
        "ssh: connect to host node08 port 22: Connection refused\npdsh@n1: node08: ssh exited with exit code 255\n",
        255,
        16,
    ),
    (
        "read-only",
        INCONCLUSIVE,
        own("OSError: [Errno 30] Read-only file system: '/w/out'", "os.makedirs('/w/out')"),
        1,
        16,
    ),
    (
        "singularity",
        INCONCLUSIVE,
        "FATAL:   container creation failed: mount /proc/self/fd/3->/usr/local/var/singularity/mnt/session"
        "/rootfs error: can't mount image\n",
        255,
        16,
    ),
    # --- a second set, written before the rules were tried on it -----------------------------------------------------
    (
        "colossal",
        INCONCLUSIVE,
        own(
            "AssertionError: Expected 8 devices for 2D mesh of (2,4), got 1", "plugin = HybridParallelPlugin(tp_size=4)"
        ),
        1,
        8,
    ),
    (
        "nemo",
        INCONCLUSIVE,
        own("RuntimeError: Trainer devices (1) * num_nodes (1) must be divisible by TP*PP (8)", "strategy.setup()"),
        1,
        8,
    ),
    (
        "verl",
        INCONCLUSIVE,
        own(
            "AssertionError: real_train_batch_size (32) must be divisible by minimal possible batch size (64)",
            "assert real_train_batch_size % minimal_bsz == 0",
        ),
        1,
        8,
    ),
    (
        "fsdp2 2d",
        INCONCLUSIVE,
        own("ValueError: dp_degree (8) * tp_degree (2) must equal WORLD_SIZE (1)", "check()"),
        1,
        16,
    ),
    (
        "gloo",
        INCONCLUSIVE,
        own(
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error, connect timeout to [10.1.2.7]:29501",
            "dist.barrier()",
        ),
        1,
        16,
    ),
    (
        "nccl",
        INCONCLUSIVE,
        own(
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
            "dist.all_reduce(x)",
        ),
        1,
        8,
    ),
    (
        "cuda device 3",
        INCONCLUSIVE,
        own(
            "RuntimeError: CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some other API call",
            "model.to('cuda:3')",
        ),
        1,
        4,
    ),
    (
        "tf strategy",
        INCONCLUSIVE,
        own(
            "ValueError: Some of the specified devices ['/gpu:1'] are not available",
            "tf.distribute.MirroredStrategy(['gpu:0','gpu:1'])",
        ),
        1,
        4,
    ),
    (
        "jax distributed",
        INCONCLUSIVE,
        own(
            "jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: PjRT_Client_Connect::0. Timed out task names: /job:jax_worker/replica:0/task:1",
            "jax.distributed.initialize()",
        ),
        1,
        16,
    ),
    (
        "jax sharding",
        INCONCLUSIVE,
        own(
            "ValueError: One of device_put args was given the sharding of NamedSharding(mesh=Mesh('data': 8)), which implies that the global size of its dimension 0 should be divisible by 8, but it is equal to 4",
            "x = jax.device_put(x, sharding)",
        ),
        1,
        8,
    ),
    (
        "assert gpus eq",
        INCONCLUSIVE,
        own("AssertionError: Expected 4 GPUs, but found 1.", "assert n == 4, f'Expected 4 GPUs, but found {n}.'"),
        1,
        4,
    ),
    (
        "numgpu env",
        INCONCLUSIVE,
        own("AssertionError", "assert int(os.environ['SLURM_NTASKS']) == cfg.num_workers"),
        1,
        8,
    ),
    (
        "hostlist",
        INCONCLUSIVE,
        own(
            "IndexError: list index out of range",
            "worker_node = hostlist.expand_hostlist(os.environ['SLURM_JOB_NODELIST'])[1]",
        ),
        1,
        16,
    ),
    ("bash array", INCONCLUSIVE, "/t/script: line 20: nodes_array[1]: unbound variable\n", 1, 16),
    ("ray head", INCONCLUSIVE, 'Starting WORKER 1 at \nsrun: error: Invalid numeric value "" for --nodelist.\n', 1, 16),
    (
        "srun specify",
        INCONCLUSIVE,
        "srun: error: Unable to create step for job 4711: Invalid node name specified\n",
        1,
        16,
    ),
    ("horovod", INCONCLUSIVE, own("AssertionError", "assert hvd.size() > 1"), 1, 8),
    (
        "dist size code",
        INCONCLUSIVE,
        own("RuntimeError: need more workers", "if dist.get_world_size() < 2: raise RuntimeError('need more workers')"),
        1,
        8,
    ),
    (
        "cuda malloc",
        INCONCLUSIVE,
        own("RuntimeError: CUDA error: out of memory", "x = torch.empty(n, device='cuda')"),
        1,
        8,
    ),
    (
        "cublas alloc",
        INCONCLUSIVE,
        own("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "y = lin(x)"),
        1,
        8,
    ),
    (
        "vllm kv",
        INCONCLUSIVE,
        own(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
            "llm = LLM(model)",
        ),
        1,
        8,
    ),
    (
        "mem free check",
        INCONCLUSIVE,
        own(
            "ValueError: Free memory on device (71.2/79.1 GiB) on startup is less than desired GPU memory utilization (0.95, 75.1 GiB).",
            "llm = LLM(model)",
        ),
        1,
        8,
    ),
    (
        "proc killed",
        INCONCLUSIVE,
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-21T07:00:00 DUE TO PREEMPTION ***\n",
        143,
        1,
    ),
    (
        "connection reset",
        INCONCLUSIVE,
        own("ConnectionResetError: [Errno 104] Connection reset by peer", "r = requests.get(url)"),
        1,
        16,
    ),
    (
        "ssl",
        INCONCLUSIVE,
        own(
            "requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]')))",
            "snapshot_download(x)",
        ),
        1,
        16,
    ),
    (
        "502",
        INCONCLUSIVE,
        own(
            "huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url: https://huggingface.co/api/models/x",
            "snapshot_download(x)",
        ),
        1,
        16,
    ),
    ("eio", INCONCLUSIVE, own("OSError: [Errno 5] Input/output error: '/lustre/data/x.bin'", "f.read()"), 1, 16),
    (
        "nvml",
        INCONCLUSIVE,
        own("pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found", "pynvml.nvmlInit()"),
        1,
        16,
    ),
    (
        "cuda init 803",
        INCONCLUSIVE,
        own(
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
            "torch.cuda.init()",
        ),
        1,
        16,
    ),
    # these are a fail
    (
        "gated repo",
        FAIL,
        own(
            "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url https://huggingface.co/meta-llama/x",
            "AutoModel.from_pretrained(x)",
        ),
        1,
        16,
    ),
    (
        "repo not found",
        FAIL,
        own(
            "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. Repository Not Found for url: https://huggingface.co/api/models/typo",
            "AutoModel.from_pretrained('typo')",
        ),
        1,
        16,
    ),
    (
        "bad token id",
        FAIL,
        own(
            "ValueError: Target 11 is out of bounds.".replace("ValueError", "IndexError"),
            "loss = F.cross_entropy(out, y)",
        ),
        1,
        16,
    ),
    ("dataloader key", FAIL, own("KeyError: 'input_ids'", "ids = batch['input_ids']"), 1, 16),
    (
        "ddp kwarg",
        FAIL,
        own(
            "TypeError: DistributedDataParallel.__init__() got an unexpected keyword argument 'find_unused'",
            "model = DistributedDataParallel(model, device_ids=[local_rank], find_unused=True)",
        ),
        1,
        16,
    ),
    (
        "not init",
        FAIL,
        own(
            "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
            "dist.init_process_group('nccl')",
        ),
        1,
        1,
    ),
    (
        "rank var typo",
        FAIL,
        own("NameError: name 'local_rnak' is not defined", "torch.cuda.set_device(local_rnak)"),
        1,
        16,
    ),
    (
        "batch shape in ddp",
        FAIL,
        own(
            "RuntimeError: The size of tensor a (128) must match the size of tensor b (64) at non-singleton dimension 1",
            "loss = ((ddp_model(x) - y) ** 2).mean()",
        ),
        1,
        16,
    ),
    (
        "einops",
        FAIL,
        inside(
            "einops.EinopsError:  Error while processing rearrange-reduction pattern \"b (h w) c -> b h w c\".\n Input tensor shape: torch.Size([8, 197, 768]). Additional info: {'h': 14}.\n Shape mismatch, can't divide axis of length 197 in chunks of 14",
            "einops/einops.py",
            "raise EinopsError(message + '\\n {}'.format(e))",
        ),
        1,
        16,
    ),
    (
        "hydra missing",
        FAIL,
        "hydra.errors.MissingConfigException: In 'train': Could not find 'model/resnet1'\n\nAvailable options in 'model':\n\tresnet\n",
        1,
        16,
    ),
    (
        "omegaconf",
        FAIL,
        own(
            "omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct\n    full_key: optim.lr\n    object_type=dict",
            "lr = cfg.optim.lr",
        ),
        1,
        16,
    ),
    (
        "scheduler",
        FAIL,
        own("ZeroDivisionError: float division by zero", "lr = base * (1 - step / total_steps)"),
        1,
        16,
    ),
    (
        "torch compile",
        FAIL,
        own(
            "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nRuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.",
            "loss = model(x)",
        ),
        1,
        16,
    ),
    (
        "pickle lambda",
        FAIL,
        own("AttributeError: Can't pickle local object 'main.<locals>.<lambda>'", "for batch in loader:"),
        1,
        16,
    ),
    ("uv", FAIL, "error: Failed to spawn: `trian.py`\n  Caused by: No such file or directory (os error 2)\n", 2, 16),
    ("conda run", FAIL, "\nEnvironmentLocationNotFound: Not a conda environment: /home/u/envs/none\n", 1, 16),
    (
        "module cmd",
        FAIL,
        "/t/script: line 5: module: command not found\n/t/script: line 6: pyton: command not found\n",
        127,
        16,
    ),
    ("cp missing", FAIL, "cp: cannot stat '/w/configs/base.yaml': No such file or directory\n", 1, 16),
    (
        "tar",
        FAIL,
        "tar: data.tar: Cannot open: No such file or directory\ntar: Error is not recoverable: exiting now\n",
        2,
        16,
    ),
    ("source", FAIL, "/t/script: line 3: /home/u/venv2/bin/activate: No such file or directory\n", 1, 16),
    (
        "typed exception",
        FAIL,
        own("mypkg.errors.ConfigError: unknown optimizer 'adamz'", "opt = build_optimizer(cfg)"),
        1,
        16,
    ),
    (
        "raise in user, its condition out of sight",
        INCONCLUSIVE,
        own(
            "ValueError: hidden size 770 is not divisible by heads 12",
            "raise ValueError(f'hidden size {h} is not divisible by heads {n}')",
        ),
        1,
        16,
    ),
    (
        "assert divisible",
        FAIL,
        own("AssertionError: embed_dim must be divisible by num_heads", "attn = nn.MultiheadAttention(770, 12)"),
        1,
        16,
    ),
    (
        "cudnn",
        FAIL,
        own(
            "RuntimeError: Given groups=1, weight of size [64, 3, 7, 7], expected input[32, 1, 28, 28] to have 3 channels, but got 1 channels instead",
            "out = net(x)",
        ),
        1,
        16,
    ),
    (
        "leaf variable",
        FAIL,
        own("RuntimeError: a leaf Variable that requires grad is being used in an in-place operation.", "p += 1"),
        1,
        16,
    ),
    (
        "no grad",
        FAIL,
        own("RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn", "loss.backward()"),
        1,
        16,
    ),
    ("amp", FAIL, own("AssertionError: No inf checks were recorded for this optimizer.", "scaler.step(opt)"), 1, 16),
    ("bus error data", FAIL, own("EOFError: Ran out of input", "pickle.load(f)"), 1, 16),
    (
        "python version",
        FAIL,
        '  File "/w/train.py", line 4\n    match x:\n          ^\nSyntaxError: invalid syntax\n',
        1,
        16,
    ),
    (
        "numpy abi",
        FAIL,
        own(
            "AttributeError: module 'numpy' has no attribute 'float'.\n`np.float` was a deprecated alias for the builtin `float`.",
            "x.astype(np.float)",
        ),
        1,
        16,
    ),
    # --- a third set, written before the rules were tried on it ------------------------------------------------------
    (
        "megatron heads",
        INCONCLUSIVE,
        own(
            "AssertionError: 40 is not divisible by 16",
            "divide(args.num_attention_heads, parallel_state.get_tensor_model_parallel_world_size())",
        ),
        1,
        16,
    ),
    (
        "lightning fsdp",
        INCONCLUSIVE,
        own("RuntimeError: The `device_mesh` size (8) does not match the world size (1)", "trainer.fit(model)"),
        1,
        8,
    ),
    (
        "oom cpu text",
        INCONCLUSIVE,
        'slurmstepd: error: Detected 2 oom_kill events in StepId=41.batch. Some of the step tasks have been OOM Killed.\nTraceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n    for b in loader:\nRuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly\n',
        1,
        16,
    ),
    (
        "rdzv",
        INCONCLUSIVE,
        own(
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.",
            "run(args)",
        ),
        1,
        16,
    ),
    (
        "mpi4py split",
        INCONCLUSIVE,
        own("IndexError: index 1 is out of bounds for axis 0 with size 1", "counts = comm.allgather(n)[comm.rank + 1]"),
        1,
        8,
    ),
    (
        "pipe stages",
        INCONCLUSIVE,
        own("ValueError: Pipeline stage 3 not found: only 1 stage on this rank", "schedule = Schedule1F1B(stages)"),
        1,
        8,
    ),
    (
        "xla",
        INCONCLUSIVE,
        own("RuntimeError: Expected at least 4 addressable devices, found 1", "mesh = Mesh(devs)"),
        1,
        4,
    ),
    ("env gpus", INCONCLUSIVE, "Requested 8 GPUs but CUDA sees 1.\nAborting.\n", 1, 8),
    ("pdsh", INCONCLUSIVE, own("RuntimeError: launcher 'pdsh' not installed.", "main()"), 1, 16),
    (
        "hostfile",
        INCONCLUSIVE,
        own("ValueError: Hostname 'node07' not found in hostfile", "parse_resource_filter()"),
        1,
        16,
    ),
    (
        "slurm_tmpdir",
        INCONCLUSIVE,
        "tar: /localscratch/u.41.0/data.tar: Cannot open: No such file or directory\n",
        2,
        16,
    ),
    (
        "nvme",
        INCONCLUSIVE,
        own("FileNotFoundError: [Errno 2] No such file or directory: '/mnt/nvme0/wiki/train.arrow'", "load()"),
        1,
        16,
    ),
    (
        "matlab lic",
        INCONCLUSIVE,
        "License checkout failed.\nLicense Manager Error -4\nMaximum number of users for MATLAB reached.\n",
        1,
        1,
    ),
    (
        "wandb net",
        INCONCLUSIVE,
        own("wandb.errors.CommError: Error communicating with wandb process", "wandb.init()"),
        1,
        16,
    ),
    (
        "aws",
        INCONCLUSIVE,
        own(
            'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3.amazonaws.com/"',
            "s3.get()",
        ),
        1,
        16,
    ),
    (
        "git clone",
        INCONCLUSIVE,
        "fatal: unable to access 'https://github.com/x/y.git/': Could not resolve host: github.com\n",
        128,
        16,
    ),
    (
        "pip",
        INCONCLUSIVE,
        "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\nWARNING: Retrying after connection broken by 'NewConnectionError'\n",
        1,
        16,
    ),
    (
        "cuda launch timeout",
        INCONCLUSIVE,
        own("RuntimeError: CUDA error: the launch timed out and was terminated", "loss.backward()"),
        1,
        16,
    ),
    (
        "hopper",
        INCONCLUSIVE,
        own("RuntimeError: FlashAttention-3 requires Hopper GPU (sm90), got sm80", "attn(x)"),
        1,
        16,
    ),
    (
        "triton shared mem",
        INCONCLUSIVE,
        own(
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 151552, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
            "kernel[grid](x)",
        ),
        1,
        16,
    ),
    (
        "int assertion mixed",
        INCONCLUSIVE,
        own(
            "AssertionError: grad_accum 512 too large", "assert args.global_batch // (args.micro_batch * world) <= 256"
        ),
        1,
        16,
    ),
    (
        "dtensor",
        INCONCLUSIVE,
        own(
            "RuntimeError: sharded tensor dim 0 of size 3 is not evenly divisible by mesh dim",
            "parallelize_module(m, tp_mesh, plan)",
        ),
        1,
        8,
    ),
    ("typo key rank", FAIL, own("KeyError: 'rank_embed'", "x = cfg['rank_embed']"), 1, 1),
    (
        "einsum",
        FAIL,
        own(
            "RuntimeError: einsum(): subscript j has size 64 for operand 1 which does not broadcast with previously seen size 32",
            "out = torch.einsum('ij,jk->ik', a, b)",
        ),
        1,
        16,
    ),
    (
        "missing tokenizer",
        FAIL,
        own(
            "ImportError: T5Tokenizer requires the SentencePiece library but it was not found in your environment.",
            "T5Tokenizer.from_pretrained('/m')",
        ),
        1,
        16,
    ),
    (
        "bad path shared",
        FAIL,
        own("FileNotFoundError: [Errno 2] No such file or directory: '/data/imagenet/train'", "ImageFolder(root)"),
        1,
        16,
    ),
    (
        "bad path work",
        FAIL,
        own("FileNotFoundError: [Errno 2] No such file or directory: '/w/local/config.yaml'", "open(path)"),
        1,
        16,
    ),
    (
        "hdf5",
        FAIL,
        own("KeyError: \"Unable to synchronously open object (object 'labels' doesn't exist)\"", "h5['labels']"),
        1,
        16,
    ),
    ("too many values", FAIL, own("ValueError: too many values to unpack (expected 2)", "x, y = batch"), 1, 16),
    (
        "optimizer arg",
        FAIL,
        own("ValueError: Invalid learning rate: -0.1", "opt = torch.optim.AdamW(model.parameters(), lr=-0.1)"),
        1,
        16,
    ),
    (
        "loss dtype",
        FAIL,
        own(
            "RuntimeError: \"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Int'",
            "loss = F.cross_entropy(o, y)",
        ),
        1,
        16,
    ),
    (
        "nonscalar",
        FAIL,
        own("RuntimeError: grad can be implicitly created only for scalar outputs", "loss.backward()"),
        1,
        16,
    ),
    ("compile", FAIL, own("torch._dynamo.exc.Unsupported: Data-dependent branching", "out = model(x)"), 1, 16),
    (
        "mult workers",
        FAIL,
        own(
            "ValueError: num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.",
            "DataLoader(d, num_workers=-1)",
        ),
        1,
        16,
    ),
    (
        "lightning batch",
        FAIL,
        own(
            "TypeError: training_step() missing 1 required positional argument: 'batch_idx'",
            "trainer.fit(model, loader)",
        ),
        1,
        16,
    ),
    (
        "accelerate config",
        FAIL,
        own(
            "FileNotFoundError: The passed configuration file `fsdp.yml` does not exist. Please pass an existing file to `accelerate launch`",
            "args.func(args)",
        ),
        1,
        16,
    ),
    ("torchrun module", FAIL, "/v/bin/python: No module named trian\n", 1, 16),
    ("bash arith", FAIL, '/t/script: line 7: 8 * : syntax error: operand expected (error token is "* ")\n', 1, 16),
    ("dos", FAIL, "/t/script: line 2: $'\\r': command not found\n", 127, 16),
    (
        "fork bomb",
        FAIL,
        own(
            "_pickle.PicklingError: Can't pickle <function f at 0x7f>: it's not found as __main__.f",
            "loader = iter(dl)",
        ),
        1,
        16,
    ),
    # --- a fourth set, written before the rules were tried on it -----------------------------------------------------
    (
        "ds zero",
        INCONCLUSIVE,
        own("AssertionError: zero.Init: partition size 1 smaller than required world 8", "with deepspeed.zero.Init():"),
        1,
        8,
    ),
    ("nproc", INCONCLUSIVE, "Expected WORLD_SIZE=16 got 1, aborting\n", 1, 16),
    ("two nodes", INCONCLUSIVE, "Please submit with at least two nodes.\n", 1, 16),
    ("multi gpu", INCONCLUSIVE, own("RuntimeError: This example requires multiple GPUs", "main()"), 1, 8),
    (
        "cupy nccl",
        INCONCLUSIVE,
        own(
            "cupy_backends.cuda.libs.nccl.NcclError: NCCL_ERROR_INVALID_ARGUMENT: invalid argument",
            "comm = NcclCommunicator(4, uid, 0)",
        ),
        1,
        4,
    ),
    (
        "p2p",
        INCONCLUSIVE,
        own("RuntimeError: CUDA error: peer access is not supported between these two devices", "x.to(d)"),
        1,
        4,
    ),
    ("jax count", INCONCLUSIVE, own("AssertionError: 1", "assert jax.device_count() == 8, jax.device_count()"), 1, 8),
    (
        "keras dist",
        INCONCLUSIVE,
        own(
            "ValueError: The number of devices in the layout (8) doesn't match available (1)",
            "keras.distribution.set_distribution(d)",
        ),
        1,
        8,
    ),
    ("ddp id", INCONCLUSIVE, own("IndexError: list index out of range", "gpu = gpus[local_rank + 1]"), 1, 8),
    (
        "socket gaierror",
        INCONCLUSIVE,
        own("socket.gaierror: [Errno -2] Name or service not known", "s = TCPStore(host, 29500)"),
        1,
        16,
    ),
    (
        "conn refused",
        INCONCLUSIVE,
        own("ConnectionRefusedError: [Errno 111] Connection refused", "redis.connect()"),
        1,
        16,
    ),
    ("gds", INCONCLUSIVE, own("RuntimeError: cuFile driver not initialized on this node", "kvikio.CuFile()"), 1, 16),
    ("ib", INCONCLUSIVE, "mlx5_0: No such device\nNET/IB : No device found.\nncclSystemError\n", 1, 16),
    (
        "segv many",
        INCONCLUSIVE,
        "/t/script: line 4: 4242 Segmentation fault      (core dumped) ./solver input\n",
        139,
        16,
    ),
    (
        "mem cgroup",
        INCONCLUSIVE,
        own(
            "RuntimeError: [enforce fail at alloc_cpu.cpp:116] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
            "x = torch.zeros(n)",
        ),
        1,
        16,
    ),
    (
        "numpy mem",
        INCONCLUSIVE,
        own(
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 59.6 GiB for an array with shape (8000000000,)",
            "np.zeros(n)",
        ),
        1,
        16,
    ),
    (
        "typo module",
        FAIL,
        "/v/bin/python: Error while finding module specification for 'pkg.trian' (ModuleNotFoundError: No module named 'pkg')\n",
        1,
        16,
    ),
    (
        "cfg missing",
        FAIL,
        own("FileNotFoundError: [Errno 2] No such file or directory: 'configs/base.yaml'", "open(p)"),
        1,
        16,
    ),
    ("assert lr", FAIL, own("AssertionError: lr must be positive", "assert args.lr > 0, 'lr must be positive'"), 1, 16),
    ("bad choice model", FAIL, own("RuntimeError: Unknown model (resnet5000)", "timm.create_model(args.model)"), 1, 16),
    ("label float", FAIL, own("RuntimeError: expected scalar type Long but found Float", "loss = crit(out, y)"), 1, 16),
    (
        "conv dim",
        FAIL,
        own("RuntimeError: Kernel size can't be greater than actual input size", "x = self.conv(x)"),
        1,
        16,
    ),
    (
        "embedding cuda",
        FAIL,
        "../aten/src/ATen/native/cuda/Indexing.cu:1308: indexSelectLargeIndex: block: [12,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        + own(
            "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported",
            "out = model(ids)",
        ),
        1,
        16,
    ),
    (
        "cublas from idx",
        FAIL,
        own("RuntimeError: CUDA error: device-side assert triggered", "torch.cuda.synchronize()"),
        1,
        16,
    ),
    ("set -e cp", FAIL, "mkdir: cannot create directory '/root/x': Permission denied\n", 1, 16),
    (
        "python2 print",
        FAIL,
        '  File "train.py", line 3\n    print "x"\n    ^^^^^^^^^\nSyntaxError: Missing parentheses in call to \'print\'. Did you mean print(...)?\n',
        1,
        16,
    ),
    (
        "tokenizer pad",
        FAIL,
        own("ValueError: Asking to pad but the tokenizer does not have a padding token.", "tok(batch, padding=True)"),
        1,
        16,
    ),
    (
        "hf not local",
        FAIL,
        own(
            "OSError: Incorrect path_or_model_id: './chekpoint'. Please provide either the path to a local folder or the repo_id of a model on the Hub.",
            "AutoModel.from_pretrained('./chekpoint')",
        ),
        1,
        16,
    ),
    ("grad scaler", FAIL, own("ValueError: Attempting to unscale FP16 gradients.", "scaler.unscale_(opt)"), 1, 16),
    (
        "collate",
        FAIL,
        own(
            "RuntimeError: stack expects each tensor to be equal size, but got [3, 224, 224] at entry 0 and [3, 200, 224] at entry 1",
            "for x in loader:",
        ),
        1,
        16,
    ),
    (
        "jax tracer",
        FAIL,
        own(
            "jax.errors.TracerBoolConversionError: Attempted boolean conversion of traced array with shape bool[].",
            "state = step(state)",
        ),
        1,
        16,
    ),
    (
        "optax",
        FAIL,
        own(
            "ValueError: Custom node type mismatch: expected type: <class 'dict'>, value: FrozenDict({...}).",
            "updates, s = tx.update(g, s)",
        ),
        1,
        16,
    ),
    (
        "dataset split",
        FAIL,
        own(
            "ValueError: Unknown split \"trian\". Should be one of ['train', 'test'].",
            "load_dataset('x', split='trian')",
        ),
        1,
        16,
    ),
    ("env venv", FAIL, "/t/script: line 3: /home/u/venv/bin/python: No such file or directory\n", 127, 16),
    # --- no error message --------------------------------------------------------------------------------------------
    ("silence, many", INCONCLUSIVE, "", 1, 16),
    ("own words, many", INCONCLUSIVE, "giving up\n", 4, 16),
    ("own words, one", FAIL, "giving up\n", 4, 1),
    ("good end", PASS, "epoch 1 done\n", 0, 16),
)


def judge_ending(text: str, code: int, gpus: int) -> Verdict:
    spec = TrialSpec(
        trial_dir="/t",
        script="/t/script",
        script_name="train.sbatch",
        chdir="/w",
        gpus=gpus,
        nodes=2 if gpus > 8 else 1,
        mem_mib=16_000,
        mem_shrunk=gpus > 1,
    )
    result = TrialResult(
        layer="exit",
        exit_code=code,
        seconds=20.0,
        crashed="Traceback" in text,
        logs=(LogTail(name="output", text=text),),
    )
    return judge(spec, result, diagnose_run, lambda path: None, make_source_reader(text))


def test_endings_are_judged_by_what_one_gpu_can_show() -> None:
    found = [(name, expected, judge_ending(text, code, gpus)) for name, expected, text, code, gpus in ENDINGS]
    assert [row for row in found if row[2].outcome.value != row[1]] == []
