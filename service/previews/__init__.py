"""Previews: views of a data set as a spec would draw them, before anything is submitted."""
