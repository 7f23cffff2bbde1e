"""The measurements, a module for each kind; `measure(row, bench)` takes one."""
