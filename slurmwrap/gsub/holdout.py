"""The draw of prerun.holdout: a share of the jobs goes without its pre-run, so that its worth can be measured. Pure.

What is drawn is not a job but what may share a pre-run: a user's script, code, environment and options, within one
week. Submitting the same again does not draw again, and a sweep is held out as a whole or not at all. Who asks for a
pre-run by --prerun has it, and takes part in no draw; so has who waits for it before they submit: a job that was then
never submitted could not be counted.
"""

from __future__ import annotations

from slurmwrap.digest import sha256_hex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import SubmitContext

WEEK_S = 7 * 86400
_MONDAY_S = 4 * 86400  # the first one of Unix time: 5 January 1970
_DIGITS = 16  # of the digest, 64 bits
WHY = "left out at random: prerun.holdout measures what pre-runs save"


def draw(mode: str, asked: str | None, group: str, desk: SubmitContext) -> tuple[str, bool]:
    """(id of the draw, "" for none; whether it leaves the pre-run out).

    `mode`: what would be done; `asked`: by --prerun; `group`: what may share a pre-run, else what tells this job apart.
    """
    share = desk.config.prerun.holdout
    if share <= 0 or asked is not None or mode not in ("auto", "gate"):
        return "", False
    week = int((desk.clock.now() - _MONDAY_S) // WEEK_S)
    found = sha256_hex(f"{desk.cluster} {desk.uid} {group} {week}".encode())[:_DIGITS]
    return found, int(found, 16) < share * 16**_DIGITS
