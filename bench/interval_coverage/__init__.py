"""How often the intervals of the night report hold the truth, and the table that they are made with."""
