"""What if the host launched CUDA graphs?"""
