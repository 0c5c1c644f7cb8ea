"""What `scripts/bootstrap.py` does, in parts: standard library only, since nothing is installed yet when it runs.

* `machine` looks: processor, compiler, GPU.
* `recipe` decides: the flags llama.cpp is built with here, and the key a wheel so built is kept under.
* `wheels` builds llama-cpp-python once per recipe and keeps it.
* `environment` makes `.venv`, installs, and remembers for what.
* `console`, `failures` and `lock` speak, explain and keep two runs apart.
* `main` puts them in order and starts the program.
"""
