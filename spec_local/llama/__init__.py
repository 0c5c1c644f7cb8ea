"""The only code that touches llama.cpp.

It knows files, devices, token ids, batches and caches. It refuses to know sampling, speculation, chat
and settings: those arrive as plain numbers.
"""
