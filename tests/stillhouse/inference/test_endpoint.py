import pytest

from stillhouse.inference.endpoint import through_package


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:8000", "localhost:8000", "[::1]:8000", "10.0.0.5", "192.168.1.2", "172.20.0.1", "169.254.1.1"),
        *("[fd00::1]", "100.64.0.1", "gpu-host:8000", "box.local", "llm.internal", "vllm.lan"),
    ],
)
def test_servers_of_ones_own_are_asked_directly(host: str) -> None:
    assert not through_package(f"http://{host}/v1", "auto")
    assert through_package(f"http://{host}/v1", "openai")


@pytest.mark.parametrize("host", ["api.openai.com", "openrouter.ai", "8.8.8.8", "shop.openai.azure.com"])
def test_hosted_endpoints_are_asked_through_the_package_unless_it_is_said(host: str) -> None:
    assert through_package(f"https://{host}/v1", "auto")
    assert not through_package(f"https://{host}/v1", "direct")
