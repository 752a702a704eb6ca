"""How does a model leave Headlight? One file for each form that other programs want."""
