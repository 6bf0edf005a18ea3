"""Checks of the webhook of [notify], and the test message of `slurmwrap doctor --test-notify`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slurmwrap.cli.doctor.check_records import FAIL, OK, SKIP, WARN, CheckContext, CheckResult
from slurmwrap.config.load_config import read_layers
from slurmwrap.errors import ConfigError, StoreError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.webhook import Webhook, WebhookMessage, make_webhook

NAME = "notify"
_SHOWS = "`slurmwrap config show notify` shows where it is set."


def check_webhook(context: CheckContext) -> CheckResult:
    """Check whether notify.url can be used and its server answers. No message is sent."""
    found = _use_webhook(context, lambda webhook: webhook.connect(), "answers; `--test-notify` sends a message")
    readable = _find_readable_file(context) if found.state == OK else ""
    if not readable:
        return found
    hint = f"chmod 600 {readable}. The site's file must stay readable: name a file there that holds the address."
    return replace(found, state=WARN, text=f"other users can read the address in {readable}", hint=hint)


def _find_readable_file(context: CheckContext) -> str:
    """Return the configuration file that holds the address and that other users may read; "" if there is none."""
    layers = [layer for layer in read_layers(context.environ) if "url" in layer.tables.get("notify", {})]
    if not layers or not layers[-1].path or layers[-1].tables["notify"]["url"].startswith("/"):
        return ""
    return layers[-1].path if Path(layers[-1].path).stat().st_mode & 0o004 else ""


def send_test_message(context: CheckContext) -> CheckResult:
    """Send one message to notify.url."""
    message = WebhookMessage(
        subject="slurmwrap: a test message",
        text="Messages about failed and running jobs will appear here. Nothing is wrong.",
        facts={"version": 1, "event": "test", "cluster": context.setting("ClusterName")},
    )
    return _use_webhook(context, lambda webhook: webhook.send(message), "accepted a test message")


def _use_webhook(context: CheckContext, use: Callable[[Webhook], None], works: str) -> CheckResult:
    notify = context.config.notify
    if not notify.url:
        return CheckResult(name=NAME, state=SKIP, text="notify.url is not configured: no message is sent")
    try:
        webhook = make_webhook(notify.url, notify.format, notify.proxy)
        use(webhook)
    except (ConfigError, StoreError) as error:
        return CheckResult(name=NAME, state=FAIL, text=str(error), hint=_SHOWS)
    return CheckResult(name=NAME, state=OK, text=f"{webhook.host} {works} (format {webhook.format})")
