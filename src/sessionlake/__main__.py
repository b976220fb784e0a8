"""Entry point of the command `sessionlake` and of `python -m sessionlake`."""

import signal


def main() -> None:
    """Runs the command line. While its modules are imported, Ctrl-C ends the process at once, without a traceback."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sessionlake.cli import app

    signal.signal(signal.SIGINT, before)
    app.main()


if __name__ == "__main__":
    main()
