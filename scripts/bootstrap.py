"""Set everything up, then run spec-local: the only thing a fresh checkout needs is Python and a C++ compiler.

    python3 scripts/bootstrap.py generate -p "Write a haiku about rivers"
    python3 scripts/bootstrap.py test [pytest arguments]
    python3 scripts/bootstrap.py --rebuild [words as above]

Every word but `test` goes on to `spec-local`. `--rebuild` as the first word builds llama.cpp anew, though one is kept
or installed, and then goes on with the other words, if there are any. The work is done by the package `bootstrapping`
beside this file; this part keeps to syntax that old Pythons can parse, so that they can say what is wrong.
"""

import os
import subprocess
import sys

OLDEST = (3, 11)


def newer_python():
    """A Python that is new enough, by the name it is installed under, or None."""
    probe = "import sys; sys.exit(sys.version_info < %r)" % (OLDEST,)
    for name in ["python3.14", "python3.13", "python3.12", "python3.11"]:
        try:
            if subprocess.call([name, "-c", probe], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
                return name
        except OSError:
            continue
    return None


def start():
    """Run the set-up in this Python, or hand over to a newer one.

    Returns:
        The exit status.
    """
    if sys.version_info >= OLDEST:
        from bootstrapping.main import main

        return main(sys.argv[1:])
    name = newer_python()
    if name is None:
        have = "%d.%d" % sys.version_info[:2]
        sys.stderr.write("spec-local needs Python 3.11 or newer; this is Python %s.\n" % have)
        sys.stderr.write("Install a newer Python, then run this with it, e.g. python3.12 scripts/bootstrap.py\n")
        return 4
    command = [name, os.path.abspath(__file__)] + sys.argv[1:]
    return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(start())
