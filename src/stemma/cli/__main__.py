"""`python -m stemma.cli`."""

import sys

from stemma.cli import main

sys.exit(main())
