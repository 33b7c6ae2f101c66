"""Worker of `step_time.py`: on request, times a library's W-SVGP steps: ``python step.py PROBLEM.npz LIBRARY``."""

import sys
import warnings

from contract import Problem
from exchange import serve
from train import open_peer

if __name__ == "__main__":
    p, kind = Problem.read(sys.argv[1]), open_peer(sys.argv[2])
    peer = kind(p)
    if sys.argv[2] == "agp":
        warnings.simplefilter("error")  # a step with a repaired factorisation would be a different step
    work = {"gradient": lambda: peer.gradient(p.X, p.y), "step": lambda: peer.step(p.X, p.y, p.rate, p.rate)}
    serve(work, kind.versions)
