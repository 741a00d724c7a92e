"""Old name of `workers.driver`, which a 0.1 dispatcher starts on nodes that are upgraded first."""

import sys

from workers.driver import main

if __name__ == "__main__":
    sys.exit(main())
