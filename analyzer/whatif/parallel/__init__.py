"""What if the iteration ran on many GPUs under a parallel plan?"""
