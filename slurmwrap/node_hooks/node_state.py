"""Edge: this node's private directory: marks from Prolog to Epilog, observations not sent yet, the last failure."""
import json
import os
import stat
import time

# An Epilog that never ran leaves its mark; longer than any job's time limit.
MARK_DAYS = 30
# No one reads a refusal or a file half written after so long.
LEFT_S = 3600
_PASSING = (".mark", ".usage", ".refused", ".new")
# Of at most 380 KiB: /run is memory.
UNSENT_FILES = 64


def ensure(path):
    """`path` as a directory of slurmwrap's that no one else can enter. OSError when it cannot be had."""
    try:
        os.makedirs(path, mode=0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError("%s is not a private directory of uid %d" % (path, os.geteuid()))
    return path


def write(path, data):
    """Replaces `path` in one step; hooks of several jobs may do so at once."""
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
    """The JSON object that `write` left at `path`; {} when there is none that can be read."""
    try:
        with open(path, "rb") as stream:
            found = json.loads(stream.read(1 << 20).decode("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def save_mark(settings, job_id, mark):
    """Keeps what the Epilog of the same job on this node needs. A requeued job's Prolog overwrites it."""
    directory = ensure(settings.node_state_dir)
    write(mark_path(directory, job_id), json.dumps(mark).encode("utf-8"))


def take_mark(settings, job_id):
    """The mark of a job, {} when no Prolog left one; it is removed, and very old ones of other jobs with it."""
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
    """Where the Prolog of a job leaves its mark."""
    return os.path.join(directory, "%d.mark" % job_id)


def usage_path(directory, job_id):
    """Where the sampler of a job keeps the highest values."""
    return os.path.join(directory, "%d.usage" % job_id)


def take_usage(settings, job_id):
    """What the sampler of a job kept, {} when there was nothing to sample; the file is removed."""
    path = usage_path(settings.node_state_dir, job_id)
    try:
        with open(path, "rb") as stream:
            usage = json.loads(stream.read(4096).decode("utf-8"))
        os.unlink(path)
    except (OSError, ValueError):
        return {}
    return dict(usage, mem_source="cgroup") if isinstance(usage, dict) else {}


def _prune(directory):
    now = time.time()
    for name in os.listdir(directory):
        age = MARK_DAYS * 86400 if name.endswith((".mark", ".usage")) else LEFT_S
        path = os.path.join(directory, name)
        try:
            if name.endswith(_PASSING) and os.lstat(path).st_mtime < now - age:
                os.unlink(path)
        except OSError:
            pass  # another hook was faster


def keep_unsent(settings, name, payload):
    """Keeps an observation that could not be sealed or spooled; the node's next hook sends it. False when full."""
    directory = ensure(os.path.join(ensure(settings.node_state_dir), "unsent"))
    if len(os.listdir(directory)) >= UNSENT_FILES:
        return False
    write(os.path.join(directory, name), payload)
    return True


def unsent(settings, limit):
    """Up to `limit` paths of observations kept by `keep_unsent`, oldest first."""
    directory = os.path.join(settings.node_state_dir, "unsent")
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".obs"))
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names[:limit]]


def note(settings, text):
    """Writes the last failure of a hook to `failed` in the node's directory, replacing the one before."""
    line = "%d %s\n" % (time.time(), text.replace("\n", " ")[:2000])
    write(os.path.join(ensure(settings.node_state_dir), "failed"), line.encode("utf-8", "replace"))
