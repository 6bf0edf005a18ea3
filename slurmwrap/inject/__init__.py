"""What runs inside the user's Python: the step counter. Standard library, Python 3.6 syntax."""
