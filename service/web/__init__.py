"""The page: static files that the API process serves at `/`, a client of the public API and nothing else."""
