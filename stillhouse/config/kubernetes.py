"""Section of trainings that run as a Kubernetes job."""

from pydantic import Field

from stillhouse.config.section import Section


class KubernetesConfig(Section):
    """Where and how a training runs as a Kubernetes job; used by `runtime.launcher: kubernetes` alone."""

    image: str | None = None
    """Container image with Stillhouse in it; needed. Name it by digest, or a new tag for each build."""
    namespace: str = "default"
    """Namespace of the job."""
    context: str | None = None
    """Context of the kubeconfig file; None takes its current one, and inside a cluster the pod's own account."""
    claim: str | None = None
    """Persistent volume claim that holds the store, writable by many nodes; None leaves the volumes to `template`."""
    mount_path: str | None = None
    """Where `claim` is mounted in the pods, the folder at which the flow sees it; None takes the store's own."""
    gpu_resource: str = "nvidia.com/gpu"
    """Name of the resource that GPUs are asked for by."""
    cpus: float | None = Field(default=None, gt=0.0)
    """CPU cores each pod asks for; None leaves it to the namespace."""
    memory_gib: float | None = Field(default=None, gt=0.0)
    """Memory each pod asks for and may use at most, in GiB; None leaves it to the namespace."""
    shared_memory_gib: float = Field(default=16.0, gt=0.0)
    """Most shared memory of a pod in GiB, through which its processes exchange tensors; it counts as memory used."""
    queue: str | None = None
    """Local queue of Kueue that the job waits in; None starts it at once."""
    secret: str | None = None
    """Secret of the namespace whose entries become environment variables, keys and tokens for instance."""
    template: str | None = None
    """YAML file of a pod template (`metadata`, `spec`) with all else: node selectors, tolerations, volumes. Its first
    container is the training's."""
