"""One file a class of attacks, each with `cases()`."""
