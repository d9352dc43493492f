"""The whole of npukit in a browser. Runs are processes of their own, and their state is on disk."""
