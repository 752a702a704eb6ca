"""The page: one HTML file that shows a run's heads, and the server's page."""
