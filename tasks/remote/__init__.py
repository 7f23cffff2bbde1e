"""Work handed to other machines: flow runs of other pools and Ray workers."""
