"""Parts of `board.py`: tables, splits, sides, predictions and their scores, the process of a cell, and the page."""
