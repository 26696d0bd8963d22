"""What a stage decides: grants, jobs in order."""
