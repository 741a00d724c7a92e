"""Resource use of a training process."""

import resource
import sys
import time
from pathlib import Path

import torch

from dasl_core.machine import usable_cores

_STATUS = Path("/proc/self/statm")


class MachineUse:
    """Measures CPU, GPU and memory use between two reports."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._since, self._cpu_since = time.perf_counter(), time.process_time()

    def report(self) -> dict[str, float]:
        """Return the metrics since the last report, always the same ones, and reset them.

        ``cpu_utilization``: share of the usable cores; ``memory``: of the process, in bytes;
        ``gpu_utilization`` and ``gpu_memory``: busy share of the time, and peak memory of tensors in bytes.
        NaN where unknown.
        """
        now, cpu = time.perf_counter(), time.process_time()
        busy = (cpu - self._cpu_since) / max(now - self._since, 1e-9) / usable_cores()
        self._since, self._cpu_since = now, cpu
        return {"cpu_utilization": busy, "memory": resident_memory()} | self._gpu()

    def _gpu(self) -> dict[str, float]:
        if self.device.type != "cuda":
            return {}
        memory = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        try:
            utilization = torch.cuda.utilization(self.device) / 100
        # NVIDIA's management library is missing or fails, as on a MIG instance, with errors of its own types.
        except Exception:  # noqa: BLE001
            utilization = float("nan")
        return {"gpu_utilization": utilization, "gpu_memory": float(memory)}


def resident_memory() -> float:
    """Return the resident memory of this process in bytes, or its peak if only that is known."""
    try:
        pages = int(_STATUS.read_text(encoding="ascii").split()[1])
        return float(pages * resource.getpagesize())
    except (OSError, ValueError, IndexError):  # not Linux
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(peak if sys.platform == "darwin" else peak * 1024)
