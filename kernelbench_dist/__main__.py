"""`python -m kernelbench_dist` is the program `kernelbench-dist`."""

import sys

from kernelbench_dist.cli import main

sys.exit(main())
