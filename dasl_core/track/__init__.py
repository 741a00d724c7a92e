"""Trackers of a run: its metrics in TensorBoard, MLflow and Weights & Biases, beside its own records.

They are best effort: each works in a thread of its own, and none can fail a run or make it wait.
"""
