"""An HTTP server with OpenAI's API, and a page to chat on.

    serve(loaded, ServeOptions(port=8000))         # npukit serve; see start.py

schema.py declares what clients send and generate.py runs it on the engine. chat.py, completions.py and responses.py are
the three forms of the API; guard.py checks every request first.
"""
