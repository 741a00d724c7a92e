"""The site of the documentation: `make docs` builds it into `build/site`."""
