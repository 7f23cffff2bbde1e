"""Answers in Python, run against tests that they never see.

    verifier --request--> judge (has the tests) --arguments--> the answer's process
                            compares             <--values---

Both run in one jail of `stillhouse.sandbox`; the answer in a process namespace below the judge's, forked from a
process that never held the tests. Expected values, asserts and the verdict stay with the judge. The answer's process
returns values of plain types, and numbers for all other objects: it can claim any value, but knows no expected one.
Tests in Python run in the judge, on proxies of what the answer defines; a script is judged by its output and exit code.

If the kernel grants no jail, nothing is run and the answer stays unverified. SECURITY.md lists the remaining risks.
"""
