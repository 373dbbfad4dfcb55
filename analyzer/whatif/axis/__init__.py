"""What if the batch, the sequences or the cache were of another size?"""
