"""The objectives: lower bounds on the log evidence, and the log evidence itself, to be maximised."""

from agp.bounds._elbo import blocked_elbo, blocks_of, elbo
from agp.bounds._evidence import log_evidence

__all__ = ["blocked_elbo", "blocks_of", "elbo", "log_evidence"]
