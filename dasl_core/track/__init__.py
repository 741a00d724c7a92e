"""Trackers of a run's metrics: TensorBoard, MLflow and Weights & Biases.

They are best effort: each has its own thread, and cannot fail a run or make it wait.
"""
