"""`python -m wavepp.directory`: a cache directory."""

from __future__ import annotations

import sys

from wavepp.directory.app import directory_main
from wavepp.directory.config import DirectoryConfig
from wavepp.infra.config import load
from wavepp.infra.logs import setup_logging
from wavepp.infra.process import run_process


def main() -> None:
    """Read the configuration and run until a signal."""
    config = load(DirectoryConfig, sys.argv[1:], name="wavepp.directory")
    setup_logging(config.log_level, config.log_format)
    sys.exit(run_process(directory_main(config), name="wavepp.directory"))


if __name__ == "__main__":
    main()
