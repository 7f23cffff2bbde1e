"""Runs code that is not trusted: one jail for the verifier `python` and for `@tool(sandbox=True)`. Linux only.

    caller --control socket--> server --fork--> supervisor --fork--> anchor --fork--> the jail's first process
      ^------- a socket pair for each call -------^              (makes the jail)

The server loads what there is to run once and forks for each call, which costs some milliseconds. A jail shows the
interpreter, its packages, the system's programs and libraries, and a scratch folder in memory: no other file, no
network, no other process, no open file and no environment variable of the caller's. Its processes are limited in
number, and each in processor time, memory and size of files. The supervisor ends the jail when the time is up, when the
call is answered, and when the caller is gone; every process of the jail ends with its first one.

Where the kernel grants no such jail nothing is run. A weakness of the kernel itself can still be a way out.
"""
