"""`python -m wavepp.router`: a router."""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":
    # Before the imports, which take seconds: without a handler the first process of a container ignores the signal.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

    from wavepp.infra.process import process_main
    from wavepp.router.app import run_router
    from wavepp.router.config import RouterConfig

    process_main(RouterConfig, run_router, name="wavepp.router")
