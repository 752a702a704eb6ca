"""What learners write into the exercises on training: mistakes, and right answers that are written differently."""

WRONG: dict[str, list[tuple[str, str]]] = {}
RIGHT: dict[str, list[str]] = {}
