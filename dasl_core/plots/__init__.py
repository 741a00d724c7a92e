"""Plots of a run, as pictures and as data, and its report. Only the modules that draw import Matplotlib."""
