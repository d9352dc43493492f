"""Answers of several turns: after each, a user's scheduler provides what follows, such as the result of a tool.

Tokens are passed on as they were sampled: the model's output is never converted to text and back. What the model did
not say itself is masked from the loss.
"""
