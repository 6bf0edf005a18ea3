"""Checks of the webhook of [notify], and the test message of `slurmwrap doctor --test-notify`."""

from __future__ import annotations

from collections.abc import Callable

from slurmwrap.cli.doctor.check_records import FAIL, OK, SKIP, CheckContext, CheckResult
from slurmwrap.errors import ConfigError, StoreError
from slurmwrap.host.webhook import Webhook, WebhookMessage, make_webhook

NAME = "notify"
_SHOWS = "`slurmwrap config show notify` shows where it is set."


def check_webhook(context: CheckContext) -> CheckResult:
    """Check whether notify.url can be used and its server answers. No message is sent."""
    return _use_webhook(context, lambda webhook: webhook.connect(), "answers; `--test-notify` sends a message")


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
