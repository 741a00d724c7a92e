"""A folder of JPEGs, from nothing to the first training step: ``python -m benchmarks.ingest``.

Makes 100,000 different JPEGs of 500x375 pixels and measures, each in a process of its own, seconds, processor
time and memory of ingest, and of the preparation of a first step at 64 pixels, which fills the image cache.

``--kill 5`` does it again in other folders and kills the process five times with SIGKILL, at points that are
spread evenly over the work. It then compares the index and every canvas with those of the undisturbed run: no
image may be lost or occur twice.

``--disk-limit 60`` slows every read and write of files to 60 MB/s together, as a slow disk without a page cache
would, and reports whether memory stays flat. The calls of the C library that do so are replaced in the
measured processes, which needs a C compiler. Neither what the kernel reads for a mapped file nor `fwrite` is
slowed.
"""
