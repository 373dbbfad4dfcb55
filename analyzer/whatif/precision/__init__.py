"""What if it ran in another precision?"""
