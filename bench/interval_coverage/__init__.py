"""Measure how often the night report's intervals contain the true value, and compute the table that they use."""
