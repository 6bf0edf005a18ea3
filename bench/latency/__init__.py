"""What bench/submit_latency.py measures: calls and clusters."""
