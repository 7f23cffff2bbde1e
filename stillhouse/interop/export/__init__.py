"""Export: a dataset in the forms that other trainers and the Hugging Face Hub take."""

from stillhouse.interop.export.files import Form, check_output, export_dataset
from stillhouse.interop.export.hub import push_to_hub

__all__ = ["Form", "check_output", "export_dataset", "push_to_hub"]
