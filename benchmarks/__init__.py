"""How fast is it here? Speed and memory, beside others."""
