"""What bench/submit_latency.py measures, and on what."""
