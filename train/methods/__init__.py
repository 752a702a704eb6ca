"""What the methods after pretraining need besides their scripts: their keys, their batches, their rewards."""
