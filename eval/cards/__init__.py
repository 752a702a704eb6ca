"""Tables of FINDINGS.md, from stored results of sweeps: `python -m eval.cards sharing`."""
