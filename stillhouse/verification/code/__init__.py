"""Answers in Python, run against tests in a process apart.

    verifier --question--> helper --fork--> anchor --fork--> first process of its own namespaces --fork--> the code
                           (watches)       (sets them up)   (runs the tests, compares)

The code sees no network, no other process, and files that it can read but not write, but for a folder in memory that is
gone with it. Its processes are limited in number, and each in processor time, memory and size of files. When the anchor
dies, all of them die. Where the kernel gives no such namespaces nothing is run, and the answer stays unverified.

This keeps accidents and mischief of a model's code from the machine; it is no wall against an attack on the kernel.
"""
