"""What follows from the numbers of a config, and which of them do not fit together? No weights here, and no torch."""
