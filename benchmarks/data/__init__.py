"""Processor time of decoding and of two SimCLR views, compared with other libraries.

``python -m benchmarks.data`` makes two views of every image of a few hundred deterministic JPEGs, on two
cores: with our loader and views as training uses them, and with a torch DataLoader and the transforms of
torchvision v2, lightly and kornia, and with litData's streaming if it is installed. The contenders take
turns in one run.

Ours is reported three times: ingest, which happens once; the first epoch on a data set, with the building
of the cache; and every other epoch. The limits hold for the first use, ingest and first epoch together: all other
contenders do in each epoch what it takes.
"""
