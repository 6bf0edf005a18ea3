"""Turns an observation into a MUNGE credential in the spool; what cannot be sent is kept on the node and sent later."""
import binascii
import json
import os
import time

from . import deadline_child, node_state

VERSION = 1
# As base64 with MUNGE's header: under 512 KiB.
PAYLOAD = 380 * 1024
CREDENTIAL = 1 << 20
MUNGE_S = 3.0
# Of those kept from before, by one hook.
RESENT = 4


def observation(settings, job_id, context, facts):
    """The JSON object of docs/records.md, with a fresh nonce."""
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
    """Seals and spools one observation, then some of those kept from before. False when that fails; it is kept then."""
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
        # This hook's own is there.
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
    """Writes a file aside and renames it. Readable by the spool's owner, and by no one else where we may say so."""
    aside = os.path.join(directory, "." + name)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            _hand_over(descriptor, os.stat(directory).st_uid)
            stream.write(data)
        os.rename(aside, os.path.join(directory, name))
    except BaseException:
        os.unlink(aside)
        raise


def _hand_over(descriptor, owner):
    """To the reconciler's user. Over NFS with root_squash we may not; then the unguessable name has to do."""
    if owner == os.geteuid():
        return
    try:
        os.fchown(descriptor, owner, -1)
    except OSError:
        os.fchmod(descriptor, 0o644)


def fit(found, limit=PAYLOAD):
    """UTF-8 JSON of at most `limit` bytes: log tails lose their beginnings, then kernel lines their end, then all."""
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
