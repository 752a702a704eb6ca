"""How do I talk to it, and watch it?"""
