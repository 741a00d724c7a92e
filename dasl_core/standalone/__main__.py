"""`python -m dasl_core.standalone`, also under `torchrun -m dasl_core.standalone ...`."""

import sys

from dasl_core.standalone.main import main

if __name__ == "__main__":
    sys.exit(main())
