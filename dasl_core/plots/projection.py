"""Maps of features: two principal components, with axes aligned between successive maps."""

import numpy as np


def principal_components(features: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Project features (N, d) to their two principal components, (N, 2) float32.

    Also returns the share of the variance on each. Rows are first scaled to length 1, as in the cosine search of
    neighbors. The largest coordinate of each axis is positive.
    """
    x = features.astype(np.float64)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    x -= x.mean(axis=0)
    count, width = x.shape
    # The eigenvectors of the smaller Gram matrix are the components, or the coordinates.
    gram = x.T @ x if width <= count else x @ x.T
    values, vectors = np.linalg.eigh(gram)
    values, vectors = np.maximum(values[::-1][:2], 0), vectors[:, ::-1][:, :2]
    coordinates = x @ vectors if width <= count else vectors * np.sqrt(values)
    missing = 2 - coordinates.shape[1]
    coordinates = np.pad(coordinates, ((0, 0), (0, missing)))
    largest = coordinates[np.abs(coordinates).argmax(axis=0), [0, 1]]
    coordinates *= np.where(largest < 0, -1, 1)
    total = max(float(np.trace(gram)), 1e-30)
    first, second = (float(value) / total for value in np.pad(values, (0, missing)))
    return coordinates.astype(np.float32), (min(first, 1.0), min(second, 1.0))


def aligned(coordinates: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """Align a map (N, 2) with the previous one by rotation or reflection (orthogonal Procrustes)."""
    product = coordinates.T.astype(np.float64) @ previous.astype(np.float64)
    left, _, right = np.linalg.svd(product)
    turned: np.ndarray = (coordinates @ (left @ right)).astype(np.float32)
    return turned
