"""What does it know? Look at what a model learned; this room reads models and data and changes neither."""
