"""What bench/simulator.py measures with: prefixes of a trace, child processes, peers, the plot."""
