"""Export: a dataset in the forms that other trainers and the Hugging Face Hub take."""

from stillhouse.interop.export.files import Form, export_dataset
from stillhouse.interop.export.hub import push_to_hub

__all__ = ["Form", "export_dataset", "push_to_hub"]
