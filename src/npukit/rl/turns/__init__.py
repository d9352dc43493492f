"""Answers of several turns: after each, a scheduler of the user's says what follows, such as the result of a tool.

Tokens go in and out as they were sampled: nothing that the model said is ever made into text and back. What it did not
say itself is masked from the loss.
"""
