"""`python -m wavepp.stage`: one stage worker."""

from __future__ import annotations

import sys

from wavepp.infra.config import load
from wavepp.infra.logs import setup_logging
from wavepp.infra.process import run_process
from wavepp.stage.app import stage_main
from wavepp.stage.config import StageConfig


def main() -> None:
    """Read the configuration and run until a signal."""
    config = load(StageConfig, sys.argv[1:], name="wavepp.stage")
    setup_logging(config.log_level, config.log_format)
    sys.exit(run_process(stage_main(config), name="wavepp.stage"))


if __name__ == "__main__":
    main()
