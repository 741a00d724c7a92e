"""The dispatcher: claims queued jobs, runs their attempts on Ray, and sees them to their end."""
