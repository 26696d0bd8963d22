"""What goes into the pipeline next: which tokens of which grants, and what that costs."""
