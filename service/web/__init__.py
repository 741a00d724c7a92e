"""The page: static files that the API process serves at `/`; it uses only the public API."""
