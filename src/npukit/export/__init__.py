"""Write a trained model in the form that another program reads."""
