"""What the same recipe learns through DASL, lightly and stable-pretraining."""
