"""Mechanisms that divide CPUs and memory in a round: production's allocate(), the authors' with their quirks, the
optimum.
"""
