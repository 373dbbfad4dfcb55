"""What if a compiler merged pointwise ops?"""
