"""Default weights of DAR and SEC, for jobs and for other training loops."""

# lambda by norm, or for distances, from `benchmarks.sweep` (docs/spec.md): 0.5 is the best of five for
# distances; for l1, no weight around 0.003 differed measurably from 0. l2 and sq_l2 of 128 coordinates
# are about a tenth of their l1.
DAR_WEIGHTS = {"l1": 0.003, "l2": 0.03, "sq_l2": 0.03, "distance": 0.5}
# eta by target. For the target 0, it is the weight in the SEC authors' README (`--l2reg_wei 1e-4`), because at 0.5
# the penalty outweighs a loss of dot products.
SEC_WEIGHTS = {"mean": 0.5, "zero": 1e-4}


def default_dar_weight(norm: str, difference: str) -> float:
    """Return DAR's weight lambda for a norm of differences averaged over their pairs."""
    return DAR_WEIGHTS["distance" if difference == "distance" else norm]
