"""Which hosts run slurmctld, and what those need on which nothing is written: a backup takes over at any time. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slurmwrap.install.slurm_conf import SlurmConfSetting, named


def list_controller_hosts(settings: Collection[SlurmConfSetting]) -> tuple[str, ...]:
    """By name, the primary first: `SlurmctldHost=ctl0(10.0.0.1)` on lines of its own, or the keys of before 18.08."""
    found = [one.value for one in named(settings, "SlurmctldHost")]
    if not found:
        older = (*named(settings, "ControlMachine"), *named(settings, "BackupController"))
        found = [name for one in older for name in one.value.split(",")]
    return tuple(dict.fromkeys(name.partition("(")[0].strip() for name in found))


def list_other_controllers(hosts: Sequence[str], here: str) -> tuple[str, ...]:
    """The controllers that this machine is not. `here`: its name; "" for an image, which is taken for the primary's."""
    mine = {_shorten_host(here), "localhost"} if here else {_shorten_host(name) for name in hosts[:1]}
    return tuple(name for name in hosts if _shorten_host(name) not in mine)


def _shorten_host(name: str) -> str:
    return name.partition(".")[0].lower()


def needs(names: Collection[str], directory: str) -> tuple[str, ...]:
    """What an administrator has to do for them, a sentence each."""
    if not names:
        return ()
    who = ", ".join(names)
    return (
        f"{who}: nothing is written there. Before a backup takes over it has to have the same slurm.conf (shared, or "
        "brought by you), as Slurm itself demands.",
        f"The hooks ({directory}), the configuration and SlurmUser's directory for EpilogSlurmctld go there by "
        "`slurmwrap hooks bundle --controller FILE.tar.gz`, there `tar -C / -xzf FILE.tar.gz`; `tar -C / -dzf "
        "FILE.tar.gz` compares. Without them jobs run as well, and EpilogSlurmctld is not heard.",
        "No service there: reconciler, report and watchdog run on this machine alone, whichever controller is active; "
        "two reconcilers would each hear half and both decide. While this machine is down, what the hooks found waits "
        "in the spool.",
    )


def explain_no_controller(hosts: Sequence[str], here: str) -> str:
    """What is said where this machine is none of them; "" where it is."""
    if not hosts or not here or len(list_other_controllers(hosts, here)) < len(hosts):
        return ""
    return (
        f"This machine ({here}) is none of slurm.conf's controllers ({', '.join(hosts)}): EpilogSlurmctld runs on "
        "those, and leaves its word on their disk, where the reconciler of this machine does not see it."
    )
