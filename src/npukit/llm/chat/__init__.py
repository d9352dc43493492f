"""Chat: templates, and the conversations that they turn into text."""
