"""Answers in Python, run against tests that they never see.

    verifier --question--> judge (has the tests) --arguments--> the answer's process
                             compares             <--values---

Both run in one jail of `stillhouse.sandbox`, the answer in a process namespace below that of the judge, forked from a
process that never held the tests. Expected values, asserts and the verdict stay with the judge. What comes out of the
answer's process are values of plain types, and numbers for all other objects: it can claim any value, and knows none
that is expected. Tests in Python run in the judge, among stand-ins for what the answer defines; a script is judged by
what it prints and by its exit code.

Where the kernel grants no jail nothing is run, and the answer stays unverified. SECURITY.md says what is left.
"""
