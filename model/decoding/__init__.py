"""Key-value caches, sampling and generation: how does a trained model write?"""
