"""Plots of a run, as images and as data, and its report. Only drawing modules import Matplotlib."""
