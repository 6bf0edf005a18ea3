"""Decide what to do about a failure: retries, retry budget, strikes against nodes, incidents, blocked inputs. Pure."""
