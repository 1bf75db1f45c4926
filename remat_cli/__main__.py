"""`python -m remat_cli` is `remat`."""

import sys

from remat_cli.cli import main

sys.exit(main())
