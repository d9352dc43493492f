"""Use a language model: the engine that generates tokens, and chat, batch inference, a server and evaluation on it."""
