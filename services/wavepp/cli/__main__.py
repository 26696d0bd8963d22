"""`python -m wavepp.cli`: the `wavepp` command."""

from wavepp.cli.main import run

if __name__ == "__main__":
    run()
