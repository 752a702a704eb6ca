"""Which stories does this world tell? Runs and prepared data remember the version, so an edit of prose keeps them."""

# Raise it when any story, question or conversation changes, and record the new digest;
# tests/data/test_versions.py says which. A docstring or a faster way to the same text needs no new version.
STORYWORLD_VERSION = 6
STORYWORLD_DIGESTS = {
    1: "7371aed877d29dbc",
    2: "3ca225f72585b8c1",
    3: "55bfd30b2fbd4703",
    4: "7bb1527d88d8e9a2",
    5: "1be1050668e7765d",
    6: "1e8759fa9883addb",
}
