"""Forms in which students are handed on, each compared with the student in its own runtime. Free of torch."""
