"""Entry point of `python -m sessionlake`, which runs the command `sessionlake`."""

from sessionlake.cli.app import main

if __name__ == "__main__":
    main()
