"""Write observations to the spool as MUNGE credentials; one that cannot be sent is kept on the node and sent later."""
import binascii
import json
import os
import time

from . import deadline_child, node_state

VERSION = 1
# Largest observation in bytes; as base64 with MUNGE's header it has less than 512 KiB.
PAYLOAD = 380 * 1024
CREDENTIAL = 1 << 20
MUNGE_S = 3.0
# Number of kept observations that one hook sends in addition to its own.
RESENT = 4


def observation(settings, job_id, context, facts):
    """Return an observation as the JSON object of docs/records.md, with a fresh nonce."""
    return {
        "version": VERSION,
        "nonce": binascii.hexlify(os.urandom(16)).decode("ascii"),
        "cluster": settings.cluster,
        "job_id": job_id,
        "context": context,
        "at": time.time(),
        "node": settings.node,
        "facts": facts,
    }


def send(found, settings, deadline, keep=True):
    """Seal and spool one observation, then some that earlier hooks kept.

    Return False when the observation could not be sent; then it is kept if `keep` is set.
    """
    name = "%d-%s-%s.obs" % (found["at"] * 1e6, settings.node, found["nonce"])
    payload = fit(found)
    try:
        _deliver(payload, name, settings, deadline)
    except Exception as error:
        if keep:
            kept = "kept" if node_state.keep_unsent(settings, name, payload) else "lost, too many are kept"
            node_state.note(settings, "job %s: %s: %s" % (found["job_id"], error, kept))
        return False
    try:
        _resend(settings, deadline)
    except Exception as error:
        # The observation of this hook has been sent.
        node_state.note(settings, "sent later: %s" % error)
    return True


def _resend(settings, deadline):
    for path in node_state.unsent(settings, RESENT):
        with open(path, "rb") as stream:
            _deliver(stream.read(), os.path.basename(path), settings, deadline)
        os.unlink(path)


def _deliver(payload, name, settings, deadline):
    argv = [settings.munge] + (["--socket=" + settings.munge_socket] if settings.munge_socket else [])
    sealed = deadline_child.run(argv, payload, min(deadline, time.monotonic() + MUNGE_S), CREDENTIAL)
    if not sealed.complete:
        raise OSError("munge was late" if sealed.late else "munge failed")
    spool(settings.spool, name, sealed.data)


def spool(directory, name, data):
    """Write a file to `directory` under a temporary name and rename it.

    Only the owner of the directory can read it, if this process is allowed to change the file's owner.
    """
    aside = os.path.join(directory, "." + name)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            _change_owner(descriptor, os.stat(directory).st_uid)
            stream.write(data)
        os.rename(aside, os.path.join(directory, name))
    except BaseException:
        os.unlink(aside)
        raise


def _change_owner(descriptor, owner):
    """Give the file to `owner`, the reconciler's user.

    NFS with root_squash forbids this. Then every user may read the file and only its unguessable name protects it.
    """
    if owner == os.geteuid():
        return
    try:
        os.fchown(descriptor, owner, -1)
    except OSError:
        os.fchmod(descriptor, 0o644)


def fit(found, limit=PAYLOAD):
    """Return the observation as UTF-8 JSON of at most `limit` bytes.

    If it is too long, the beginnings of log tails are removed first, then the last kernel lines, then most other facts.
    """
    while True:
        payload = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        if len(payload) <= limit:
            return payload
        _shorten(found["facts"])


def _shorten(facts):
    facts["trimmed"] = True
    longest = max(facts.get("logs") or [{}], key=lambda log: len(log.get("text", "")))
    if len(longest.get("text", "")) > 256:
        longest["text"] = longest["text"][len(longest["text"]) // 2 :]
        longest["truncated"] = True
    elif facts.get("kernel"):
        facts["kernel"] = facts["kernel"][: len(facts["kernel"]) // 2]
    else:
        for key in [key for key in facts if key not in ("trimmed", "uid", "restarts", "wait_status", "derived")]:
            del facts[key]
