"""`python -m wavepp.router`: a router."""

from __future__ import annotations

from wavepp.infra.process import process_main
from wavepp.router.app import run_router
from wavepp.router.config import RouterConfig

if __name__ == "__main__":
    process_main(RouterConfig, run_router, name="wavepp.router")
