"""The terminal application, installed as `spec_local.ui`: the only package that may import Textual."""
