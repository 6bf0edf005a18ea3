"""What container runtimes print when a container cannot start, as their sources word it, in logs of failed jobs."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import Evidence, LogTail

BEGIN, END = "=== start on gpu07\nloading modules\n", "\nsrun: error: gpu07: task 0: Exited with exit code 1\n"
MESSAGES = [
    (
        "incorrect_inputs",
        "FATAL:   could not open image /proj/a/train.sif: failed to retrieve path for /proj/a/train.sif:"
        " lstat /proj/a/train.sif: no such file or directory",
    ),
    (
        "incorrect_inputs",
        "Trying to pull quay.io/lab/train:9...\nError: initializing source docker://quay.io/lab/train:9: "
        "reading manifest 9 in quay.io/lab/train: manifest unknown",
    ),
    (
        "incorrect_inputs",
        "Error: localhost/train:1: image not known",
    ),
    (
        "incorrect_inputs",
        "Error: short-name resolution enforced but cannot prompt without a TTY",
    ),
    (
        "permission_error",
        "Error: initializing source docker://registry.lab/train:1: reading manifest 1 in registry.lab/tr"
        "ain: unauthorized: access to the requested resource is not authorized",
    ),
    (
        "permission_error",
        "FATAL:   Unable to handle docker://registry.lab/x uri: failed to get checksum for docker://regi"
        "stry.lab/x: Error reading manifest latest in registry.lab/x: requested access to the resource i"
        "s denied",
    ),
    (
        "permission_error",
        'docker: Error response from daemon: Head "https://registry.lab/v2/x/manifests/1": no basic auth credentials.',
    ),
    (
        "permission_error",
        "docker: permission denied while trying to connect to the Docker daemon socket at unix:///var/ru"
        'n/docker.sock: Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.24/info": dial unix /var/run/docker.so'
        "ck: connect: permission denied.",
    ),
    (
        "storage_full",
        "FATAL:   While making image from oci registry: error fetching image to cache: while building SI"
        "F from layers: while creating SIF: while unloading container: write /home/u/.apptainer/cache/oc"
        "i-tmp/abc: no space left on device",
    ),
    (
        "storage_full",
        "INFO:    Converting SIF file to temporary sandbox...\nFATAL:   while extracting /p/a.sif: root f"
        "ilesystem extraction failed: extract command failed: Write on output file failed because No spa"
        "ce left on device",
    ),
    (
        "storage_full",
        'Error: writing blob: storing blob to file "/var/tmp/storage123/1": write /var/tmp/storage123/1:'
        " disk quota exceeded",
    ),
    (
        "node_failure",
        "FATAL:   container creation failed: image driver mount failure: image driver squashfuse_ll inst"
        "ance exited with error: squashfuse_ll exited: fusermount3: mount failed: Operation not permitte"
        "d",
    ),
    (
        "node_failure",
        "fuse: device not found, try 'modprobe fuse' first",
    ),
    (
        "node_failure",
        "FATAL:   container creation failed: mount hook function failure: mount /proc/self/fd/3->/usr/lo"
        "cal/var/apptainer/mnt/session/rootfs error: while mounting image /proc/self/fd/3: kernel report"
        "ed a bad superblock for squashfs image partition, possible causes are that your kernel doesn't "
        "support the compression algorithm or the image is corrupted",
    ),
    (
        "node_failure",
        "cannot clone: Operation not permitted\nError: cannot re-exec process",
    ),
    (
        "node_failure",
        'Error: cannot set up namespace using "/usr/bin/newuidmap": exit status 1',
    ),
    (
        "node_failure",
        "ERROR  : Failed to create container process: No space left on device",
    ),
    (
        "node_failure",
        "enroot-nsenter: failed to create user namespace: Permission denied\nslurmstepd: error: pyxis: co"
        "uldn't start container",
    ),
    (
        "node_failure",
        "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-pri"
        "vileged user namespaces.",
    ),
    (
        "node_failure",
        "bwrap: setting up uid map: Permission denied",
    ),
    (
        "permission_error",
        'Error: writing blob: adding layer with blob "sha256:1": processing tar file(potentially insuffi'
        "cient UIDs or GIDs available in user namespace (requested 0:42 for /etc/shadow): Check /etc/sub"
        'uid and /etc/subgid if configured locally and run "podman system migrate": lchown /etc/shadow: '
        "invalid argument): exit status 1",
    ),
    (
        "permission_error",
        'ERRO[0000] cannot find UID/GID for user ada: no subuid ranges found for user "ada" in /etc/subu'
        "id - check rootless mode in man pages.",
    ),
    (
        "syntax_error",
        "exec /usr/bin/python3: exec format error",
    ),
    (
        "syntax_error",
        '{"msg":"exec container process `/usr/bin/python3`: Exec format error","level":"error"}',
    ),
    (
        "syntax_error",
        'FATAL:   "trian.py": executable file not found in $PATH',
    ),
    (
        "syntax_error",
        "Error: crun: executable file `trian` not found in $PATH: No such file or directory: OCI runtime"
        " attempted to invoke a command that was not found",
    ),
    (
        "syntax_error",
        "ch-run[123]: error: can't execve(2): trian: No such file or directory (ch_core.c:410 2)",
    ),
    (
        "syntax_error",
        "bwrap: execvp trian: No such file or directory",
    ),
    (
        "syntax_error",
        "slurmstepd: error: execve(): trian: No such file or directory",
    ),
    (
        "incorrect_inputs",
        "bwrap: Can't find source path /data/none: No such file or directory",
    ),
    (
        "incorrect_inputs",
        "FATAL:   container creation failed: mount hook function failure: mount /data/none->/data error:"
        " while mounting /data/none: mount source /data/none doesn't exist",
    ),
    (
        "incorrect_inputs",
        "Error: statfs /data/none: no such file or directory",
    ),
    (
        "incorrect_inputs",
        "ch-run[9]: error: can't bind: source not found: /data/none (ch_core.c:99)",
    ),
    (
        "cuda_init_failed",
        "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open"
        " shared object file: no such file or directory: unknown",
    ),
    (
        "cuda_init_failed",
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
    ),
    (
        "cuda_init_failed",
        "slurmstepd: error: pyxis:     nvidia-container-cli: ldcache error: process /sbin/ldconfig.real "
        "failed with error code: 1\nslurmstepd: error: pyxis:     [ERROR] /etc/enroot/hooks.d/98-nvidia.s"
        "h exited with return code 1\nslurmstepd: error: pyxis: couldn't start container",
    ),
    (
        "cuda_version_mismatch",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your "
        "driver to a newer version",
    ),
    (
        "incorrect_inputs",
        "slurmstepd: error: pyxis: child 424 failed with error code: 1\nslurmstepd: error: pyxis: failed "
        "to import docker image\nslurmstepd: error: pyxis: printing enroot log file:\nslurmstepd: error: p"
        "yxis:     [INFO] Querying registry for permission grant\nslurmstepd: error: pyxis:     [ERROR] U"
        "RL https://registry-1.docker.io/v2/lab/none/manifests/latest returned error code: 404 Not Found",
    ),
    (
        "permission_error",
        "slurmstepd: error: pyxis: failed to import docker image\nslurmstepd: error: pyxis: printing enro"
        "ot log file:\nslurmstepd: error: pyxis:     [ERROR] URL https://nvcr.io/v2/lab/x/manifests/1 ret"
        "urned error code: 401 Unauthorized",
    ),
    (
        "semantic_error",
        "slurmstepd: error: pyxis: couldn't chdir to /workspace: No such file or directory",
    ),
    (
        "node_failure",
        "slurmstepd: error: pyxis: container exited too soon, possibly due to an unusual entrypoint in the image",
    ),
    (
        "storage_full",
        "slurmstepd: error: pyxis: failed to create container filesystem\nslurmstepd: error: pyxis: print"
        "ing enroot log file:\nslurmstepd: error: pyxis:     [INFO] Extracting squashfs filesystem...\nslu"
        "rmstepd: error: pyxis:     Write on output file failed because No space left on device",
    ),
    (
        "semantic_error",
        'Error: creating container storage: the container name "train" is already in use by 0123abc. You'
        " have to remove that container to be able to reuse that name: that name is already in use",
    ),
    (
        "semantic_error",
        "Error: unknown flag: --gpu",
    ),
    (
        "semantic_error",
        'Error for command "exec": unknown flag: --nvv',
    ),
    (
        "semantic_error",
        "the input device is not a TTY",
    ),
    (
        "node_failure",
        "slurmstepd: error: container: create failed: OCI runtime error\nslurmstepd: error: _generate_pat"
        "tern: create container failed",
    ),
    (
        "incorrect_inputs",
        "slurmstepd: error: _load_config: Unable to load config /proj/bundle/config.json",
    ),
]


@pytest.mark.parametrize(("category", "message"), MESSAGES)
def test_a_container_that_cannot_start_has_its_cause(category: str, message: str) -> None:
    log = LogTail(name="output", text=BEGIN + message + END)
    found = diagnose_run(Evidence(state="FAILED", exit_code=1, logs=(log,), gpus=1))
    assert found.category == category
