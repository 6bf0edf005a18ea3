from .nets import build_mlp

__all__ = ["build_mlp"]
