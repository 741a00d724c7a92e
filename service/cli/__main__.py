"""Entry point of `python -m service.cli`, and of `torchrun -m service.cli train ...`."""

from service.cli import main

if __name__ == "__main__":
    main()
