"""Parts of `break_even.py`: inverse steps of training runs, counted operations, cards, the model and the page."""
