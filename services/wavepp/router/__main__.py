"""`python -m wavepp.router`: a router."""

from __future__ import annotations

import sys

from wavepp.infra.config import load
from wavepp.infra.logs import setup_logging
from wavepp.infra.process import run_process
from wavepp.router.app import router_main
from wavepp.router.config import RouterConfig


def main() -> None:
    """Read the configuration and run until a signal."""
    config = load(RouterConfig, sys.argv[1:], name="wavepp.router")
    setup_logging(config.log_level, config.log_format)
    sys.exit(run_process(router_main(config), name="wavepp.router"))


if __name__ == "__main__":
    main()
