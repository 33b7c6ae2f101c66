"""What `import agp` costs."""

import subprocess
import sys


class Import:
    """A fresh interpreter; no optional library may be loaded."""

    def time_import(self):
        subprocess.run([sys.executable, "-c", "import agp"], check=True)
