"""`python -m wavepp.directory`: a cache directory."""

from __future__ import annotations

from wavepp.directory.app import run_directory
from wavepp.directory.config import DirectoryConfig
from wavepp.infra.process import process_main

if __name__ == "__main__":
    process_main(DirectoryConfig, run_directory, name="wavepp.directory")
