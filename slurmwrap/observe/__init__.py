"""What prolog/ and hooks/ execute on nodes and controller. Standard library only, Python 3.6 syntax."""
