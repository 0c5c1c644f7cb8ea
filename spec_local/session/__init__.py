"""The text level: prompts in, streamed text out.

It knows chat templates, characters, stop strings, names of models and what a request is. It refuses to know how a
token is drawn or who proposed it: that is `speculation` and below.
"""
