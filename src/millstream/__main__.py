"""`python -m millstream` is the `millstream` command."""

import sys

from millstream.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
