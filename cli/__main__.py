"""`python -m cli` in a checkout, `python -m filewheel_cli` when installed."""

from .main import main

if __name__ == "__main__":
    main()
