"""What a trial proves: pass, fail or inconclusive, with the reason."""
