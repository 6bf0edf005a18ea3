"""Parts of bench/simulator.py: prefixes of a trace, child processes, peers, the plot."""
