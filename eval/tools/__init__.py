"""What can the model call, and what does it answer then?"""
