"""The router: takes requests, admits them, issues waves, answers."""
