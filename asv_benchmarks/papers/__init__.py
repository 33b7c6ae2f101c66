"""The tables of the papers, measured again: one script for each method."""
