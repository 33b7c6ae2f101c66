"""Train agp's W-SVGP and GPyTorch's whitened SVGP with the same start and minibatches, and print a table.

``python asv_benchmarks/peers/learning.py --peer-python PATH --data FILE.npz --split 0``
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dump_training import add_arguments, training_of
from exchange import ONE_THREAD

HERE = Path(__file__).parent
COLUMNS = ("nlpd", "rmse", "ms_per_step", "variance", "noise")


def run(python: str, script: str, training: Path) -> dict[str, Any]:
    """Run one side in its own interpreter with one thread; return its results."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [python, str(HERE / script), str(training), "--out", str(out)]
        subprocess.run(command, check=True, env=os.environ | ONE_THREAD, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())


def table(results: list[dict[str, Any]]) -> str:
    """Format the scores as a table."""
    lines = [f"{'':16}" + "".join(f"{name:>14}" for name in COLUMNS)]
    lines += [
        f"{r['library']:16}" + "".join(f"{r[name]:14.6g}" if r[name] is not None else f"{'':14}" for name in COLUMNS)
        for r in results
    ]
    ours, peer = (r["bounds"] for r in results)
    gaps = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, peer, strict=True)]
    half = gaps[len(gaps) // 2]
    lines.append(f"relative gap of the minibatch bounds: first {gaps[0]:.1e}, half way {half:.1e}, last {gaps[-1]:.1e}")
    return "\n".join(lines)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True, metavar="PATH", help="interpreter with gpytorch")
    add_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file for the results")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "training.npz"
        training_of(a).write(path)
        results = [run(sys.executable, "agp_svgp.py", path), run(a.peer_python, "gpytorch_svgp.py", path)]
    print(f"{a.data}, split {a.split}, seed {a.seed}, M {a.num_inducing}, B {a.batch_size}, {a.iterations} steps")
    print(table(results))
    if a.out:
        a.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
