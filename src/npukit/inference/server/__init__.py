"""An HTTP server with OpenAI's API, and a page to chat on.

    serve(loaded, ServeOptions(port=8000))         # npukit serve; see start.py

schema.py is what clients send, generate.py runs it on the engine, chat.py, completions.py and responses.py speak the
three dialects of the API; guard.py stands before them all.
"""
