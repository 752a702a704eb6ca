"""The page: an HTML file with a run's heads, and the server's page."""
