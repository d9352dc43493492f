"""Write a trained model in formats that other programs read."""
