"""Export: a dataset in the forms that other trainers and the Hugging Face Hub take."""

from stillhouse.dataset.export.files import Form, export_dataset
from stillhouse.dataset.export.hub import push_to_hub

__all__ = ["Form", "export_dataset", "push_to_hub"]
