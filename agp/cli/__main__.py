"""`python -m agp.cli`."""

import sys

if __name__ == "__main__":
    from agp.cli import main

    sys.exit(main())
