"""The ``dcs`` command line, with one module per group of commands."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; a user-correctable error prints one line and exits with code 2."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Python discards an interrupt that meets the end of an import; nothing is lost yet.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dcs_workflows.cli.app import run

    run()
