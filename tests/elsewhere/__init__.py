"""Programs that open what Headlight wrote, each in an environment of its own."""
