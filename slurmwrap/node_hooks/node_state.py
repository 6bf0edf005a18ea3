"""Access the node's private directory (adapter).

It holds marks that a Prolog leaves for the Epilog, observations that could not be sent yet, and a hook's last failure.
"""
import json
import os
import stat
import time

# Age at which the mark of a job whose Epilog never ran is removed; longer than any job's time limit.
MARK_DAYS = 30
# Age in seconds at which a refusal or a half-written file is removed; no process reads it any more.
LEFT_S = 3600
_OF_JOBS = (".mark", ".usage", ".clocks")
_TEMPORARY_SUFFIXES = _OF_JOBS + (".refused", ".new")
# Each has at most 380 KiB. The number is limited because /run is in memory.
UNSENT_FILES = 64


def ensure(path):
    """Create the directory `path` if it is missing and return it.

    Raise OSError when that fails or when another user owns the directory or may access it.
    """
    try:
        os.makedirs(path, mode=0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError("%s is not a private directory of uid %d" % (path, os.geteuid()))
    return path


def write(path, data):
    """Replace the file `path` atomically, because hooks of several jobs may write it at the same time."""
    aside = "%s.%d.new" % (path, os.getpid())
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        os.rename(aside, path)
    except BaseException:
        os.unlink(aside)
        raise


def read_json(path):
    """Return the JSON object in the file `path`; {} when it is missing, unreadable or not a JSON object."""
    try:
        with open(path, "rb") as stream:
            found = json.loads(stream.read(1 << 20).decode("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def save_mark(settings, job_id, mark):
    """Save what the Epilog of the same job on this node needs. The Prolog of a requeued job overwrites it."""
    directory = ensure(settings.node_state_dir)
    write(mark_path(directory, job_id), json.dumps(mark).encode("utf-8"))


def take_mark(settings, job_id):
    """Return and remove the mark of a job; {} when no Prolog left one. Also remove outdated files of other jobs."""
    directory = ensure(settings.node_state_dir)
    path = mark_path(directory, job_id)
    try:
        with open(path, "rb") as stream:
            mark = json.loads(stream.read().decode("utf-8"))
        os.unlink(path)
    except (OSError, ValueError):
        mark = {}
    _prune(directory)
    return mark if isinstance(mark, dict) else {}


def mark_path(directory, job_id):
    """Return the path of the mark that the Prolog of a job leaves."""
    return os.path.join(directory, "%d.mark" % job_id)


def usage_path(directory, job_id):
    """Return the path of the file in which the sampler of a job keeps the highest values."""
    return os.path.join(directory, "%d.usage" % job_id)


def take_usage(settings, job_id):
    """Return what the sampler of a job kept and remove the file; {} when it kept nothing."""
    path = usage_path(settings.node_state_dir, job_id)
    try:
        with open(path, "rb") as stream:
            usage = json.loads(stream.read(4096).decode("utf-8"))
        os.unlink(path)
    except (OSError, ValueError):
        return {}
    return dict(usage, mem_source="cgroup") if isinstance(usage, dict) else {}


def clocks_path(directory, job_id):
    """Return the path of the file in which the sampler of a job's GPUs keeps what held their clocks down."""
    return os.path.join(directory, "%d.clocks" % job_id)


def take_clocks(settings, job_id):
    """Return the fact `clocks` that the sampler kept and remove the file; {} when it counted nothing."""
    path = clocks_path(settings.node_state_dir, job_id)
    found = read_json(path)
    try:
        os.unlink(path)
    except OSError:
        pass
    return {"clocks": found} if found else {}


def _prune(directory):
    now = time.time()
    for name in os.listdir(directory):
        age = MARK_DAYS * 86400 if name.endswith(_OF_JOBS) else LEFT_S
        path = os.path.join(directory, name)
        try:
            if name.endswith(_TEMPORARY_SUFFIXES) and os.lstat(path).st_mtime < now - age:
                os.unlink(path)
        except OSError:
            pass  # Another hook removed it first.


def keep_unsent(settings, name, payload):
    """Keep an observation that could not be sealed or spooled, so that the node's next hook sends it.

    Return False, and keep nothing, when UNSENT_FILES observations are kept already.
    """
    directory = ensure(os.path.join(ensure(settings.node_state_dir), "unsent"))
    if len(os.listdir(directory)) >= UNSENT_FILES:
        return False
    write(os.path.join(directory, name), payload)
    return True


def unsent(settings, limit):
    """Return up to `limit` paths of observations that `keep_unsent` kept, oldest first."""
    directory = os.path.join(settings.node_state_dir, "unsent")
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".obs"))
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names[:limit]]


def note(settings, text):
    """Write the last failure of a hook to `failed` in the node's directory, replacing the previous one."""
    line = "%d %s\n" % (time.time(), text.replace("\n", " ")[:2000])
    write(os.path.join(ensure(settings.node_state_dir), "failed"), line.encode("utf-8", "replace"))
