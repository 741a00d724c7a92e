"""Training: the loop, its optimizer, its checkpoints, and what several processes need."""
