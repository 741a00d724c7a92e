"""`dasl doctor`: is everything here as it must be, and what is there to do where it is not."""
