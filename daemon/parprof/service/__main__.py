"""``python -m parprof.service``."""

import sys

from parprof.service.main import main

sys.exit(main())
