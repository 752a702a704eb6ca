"""Grade `python -m notebooks.check` on other people's servers: GitHub Classroom and Gradescope."""
