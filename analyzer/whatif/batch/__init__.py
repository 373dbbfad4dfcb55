"""What if the batch were of another size?"""
