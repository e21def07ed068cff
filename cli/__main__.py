"""`python -m cli` in a checkout, `python -m filewheel_cli` where it is installed."""

from .main import main

if __name__ == "__main__":
    main()
