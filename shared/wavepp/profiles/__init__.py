"""What deployments cost, as files with their sources."""
