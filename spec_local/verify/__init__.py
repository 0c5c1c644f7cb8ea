"""Checking: is speculation exact here, with this pair, on this machine?"""
