"""`python -m agp.cli`."""

import sys

from agp.cli import main

sys.exit(main())
