"""Edge: the state of the job's GPUs through NVML, in one child that is abandoned when the driver hangs.

Off unless /dev/nvidiactl exists and nvidia-ml-py was put into the zipapp. The child holds a lock: while one is stuck in
the driver, no second one starts.
"""
import fcntl
import json
import os

from . import child, state

CONTROL = "/dev/nvidiactl"
RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset")


def states(settings, gpus, deadline, binding=None, control=CONTROL):
    """Facts `gpu` (one object per GPU of the job) and `gpu_error`; {} where NVML is absent.

    `gpus`: [(index, PCI address or None)]. NVML counts GPUs in its own order, so the address decides where it is known.
    """
    if not os.path.exists(control):
        return {}
    pynvml = binding or _binding()
    if pynvml is None:
        return {}
    lock = os.open(os.path.join(state.ensure(settings.node_state_dir), "nvml.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return {"gpu_error": "an earlier question to the driver is still stuck"}
    answer = child.call(lambda send: _ask(pynvml, gpus, send), deadline, 1 << 20)
    os.close(lock)  # a stuck child still holds it
    found = [json.loads(line.decode("utf-8")) for line in answer.data.split(b"\n")[:-1]]
    error = [] if answer.complete else ["the driver did not answer in time" if answer.late else "NVML failed"]
    error += [item.pop("error") for item in found if "error" in item and "index" not in item]
    facts = {"gpu": [item for item in found if "index" in item]}
    if error:
        facts["gpu_error"] = "; ".join(error)
    return facts


def _binding():
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _ask(pynvml, gpus, send):
    """Sends one JSON line per GPU as it is known, so that a hang keeps the ones before it."""

    def say(item):
        send(json.dumps(item).encode("utf-8") + b"\n")

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        say({"error": str(error)})
        return
    for index, address in gpus:
        say(_gpu(pynvml, index, address))


def _gpu(pynvml, index, address):
    found = {"index": index}
    try:
        if address:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode("ascii"))
        else:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return dict(found, error=str(error))
    for name, read in _QUESTIONS:
        try:
            found[name] = read(pynvml, handle)
        except (pynvml.NVMLError, AttributeError):
            pass  # not supported by this GPU, driver or binding
    return found


def _bus_id(pynvml, handle):
    value = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _recovery_action(pynvml, handle):
    field = pynvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])[0]
    if field.nvmlReturn != 0:
        raise AttributeError
    value = field.value.uiVal
    return ACTIONS[value] if value < len(ACTIONS) else str(value)


def _remapped(pynvml, handle):
    correctable, uncorrectable, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {"correctable": correctable, "uncorrectable": uncorrectable, "pending": bool(pending), "failed": bool(failed)}


def _ecc(pynvml, handle):
    return pynvml.nvmlDeviceGetTotalEccErrors(
        handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    )


_QUESTIONS = (
    ("bus_id", _bus_id),
    ("recovery_action", _recovery_action),
    ("remapped_rows", _remapped),
    ("ecc_uncorrected", _ecc),
    ("processes", lambda pynvml, handle: len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))),
)
