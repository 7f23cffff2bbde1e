"""Jails for untrusted code, for the verifier `python` and for `@tool(sandbox=True)`. Linux only.

    caller --control socket--> server --fork--> supervisor --fork--> anchor --fork--> the jail's first process
      ^------- a socket pair for each call -------^              (makes the jail)

The fork server loads the code once and forks for each call, which costs some milliseconds. A jail shows the
interpreter, its packages, the system's programs and libraries, and a scratch folder in memory: no other file, no
network, no other process, no open file and no environment variable of the caller. The number of its processes is
limited, and their processor time, memory and file sizes. The supervisor ends the jail at the time limit, once the call
is answered, or when the caller is gone; every process of the jail ends with its first one.

If the kernel grants no such jail, nothing is run. A kernel exploit can still escape.
"""
