"""Files: checkpoints of training runs."""

from agp.io._checkpoint import load_checkpoint, save_checkpoint

__all__ = ["load_checkpoint", "save_checkpoint"]
