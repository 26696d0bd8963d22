"""`python -m wavepp.directory`: a cache directory."""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":
    # Before the imports, which take seconds: without a handler the first process of a container ignores the signal.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

    from wavepp.directory.app import run_directory
    from wavepp.directory.config import DirectoryConfig
    from wavepp.infra.process import process_main

    process_main(DirectoryConfig, run_directory, name="wavepp.directory")
