"""Derive a pre-run's verdict from its trial: pass, fail or inconclusive, with the reason."""
