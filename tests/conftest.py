"""What holds for every test, wherever it was started from."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts a job in the background has it ignore Ctrl-C, and so would every process of every test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
