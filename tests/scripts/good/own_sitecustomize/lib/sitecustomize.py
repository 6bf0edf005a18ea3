import os
import sys

os.environ.setdefault("GROUP_DEFAULT_SEED", "11")
sys.path.append(os.path.join(os.path.dirname(__file__), "more"))
