"""The name by which a dispatcher of version 0.1 starts `workers.driver`, on nodes that are upgraded first."""

import sys

from workers.driver import main

if __name__ == "__main__":
    sys.exit(main())
