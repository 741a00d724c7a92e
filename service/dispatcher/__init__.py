"""The dispatcher: claims queued jobs, runs their attempts on Ray, and finalizes them."""
