"""Where things are in etcd. Nothing else knows the names.

/wavepp/<cluster>/stages/<pipeline>/<stage>      a stage's registration             (on the stage's lease)
/wavepp/<cluster>/leaders/directory/<pipeline>   the directory that leads           (on its lease)
/wavepp/<cluster>/leaders/router/<pipeline>      the router that leads              (on its lease)
/wavepp/<cluster>/candidates/<kind>/<pipeline>/<instance>   who could lead: directory, router     (on their leases)
/wavepp/<cluster>/epochs/<pipeline>              the pipeline's epoch, a counter
/wavepp/<cluster>/grants/<pipeline>/<record>     the ledger, a record a round       (on the router's lease)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PipelineKeys:
    """The keys of one pipeline of one cluster."""

    cluster: str
    pipeline: str

    @property
    def stages(self) -> str:
        """Prefix of all registrations."""
        return f"/wavepp/{self.cluster}/stages/{self.pipeline}/"

    def stage(self, index: int) -> str:
        """Registration of one stage. Padded, so that a listing is in order."""
        return f"{self.stages}{index:04d}"

    @property
    def directory(self) -> str:
        """Leadership of the directory."""
        return f"/wavepp/{self.cluster}/leaders/directory/{self.pipeline}"

    @property
    def router(self) -> str:
        """Leadership of the router."""
        return f"/wavepp/{self.cluster}/leaders/router/{self.pipeline}"

    @property
    def directory_candidates(self) -> str:
        """Prefix of the directories that lead or could."""
        return f"/wavepp/{self.cluster}/candidates/directory/{self.pipeline}/"

    @property
    def router_candidates(self) -> str:
        """Prefix of the routers that lead or could."""
        return f"/wavepp/{self.cluster}/candidates/router/{self.pipeline}/"

    @property
    def epoch(self) -> str:
        """The pipeline's epoch."""
        return f"/wavepp/{self.cluster}/epochs/{self.pipeline}"

    @property
    def grants(self) -> str:
        """Prefix of the ledger's records."""
        return f"/wavepp/{self.cluster}/grants/{self.pipeline}/"

    def grant(self, record: str) -> str:
        """One record of the ledger."""
        return f"{self.grants}{record}"
