"""A spec for each row of the tables of DAR's and SEC's papers: `python -m examples.papers` writes them."""
