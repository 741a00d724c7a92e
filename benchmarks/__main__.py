"""`make bench`: the benchmarks that need no GPU, one after the other."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    "benchmarks.ctv",
    "benchmarks.regularizers",
    "benchmarks.measures",
    "benchmarks.startup",
)


def main() -> int:
    """Run all; 1 when one broke its limit or did not end well."""
    failed = []
    for name in BENCHMARKS:
        print(f"\n{name}", flush=True)
        # A process each: what one leaves in memory must not show in the figures of the next.
        if subprocess.run([sys.executable, "-m", name], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"Limits broken or run failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
