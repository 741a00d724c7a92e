"""`make bench`: the benchmarks that need no GPU, one after the other."""

import subprocess
import sys

BENCHMARKS = (
    "benchmarks.ctv",
    "benchmarks.regularizers",
    "benchmarks.metrics",
    "benchmarks.scheduling",
    "benchmarks.fair_share",
    "benchmarks.startup",
)


def main() -> int:
    """Run all benchmarks; return 1 if one exceeded its limit or failed."""
    failed = []
    for name in BENCHMARKS:
        print(f"\n{name}", flush=True)
        # One process each, so that memory kept by one does not affect the next.
        if subprocess.run([sys.executable, "-m", name], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"Limit exceeded or run failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
