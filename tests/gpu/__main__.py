"""Make one check: see lab.py."""

import sys

from tests.gpu.lab import main

sys.exit(main(sys.argv[1:]))
