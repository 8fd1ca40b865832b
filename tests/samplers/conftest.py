"""A fake vLLM server for each test that asks for one, and what its client needs."""

import pytest

from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.vllm.server import VLLMServer
from tests.samplers.fake_vllm import FakeServer
from tests.samplers.vllm_client import WAYS, make_policy


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32, layers=1, context_length=256)


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32, context_length=256)


@pytest.fixture
def policy(directory):
    return make_policy(directory)


@pytest.fixture
def way(request):
    return getattr(request, "param", "folder")


@pytest.fixture
def serve():
    """Starts servers that end with the test."""
    started = []

    def server(*arguments, **options):
        started.append(FakeServer(*arguments, **options))
        return started[-1]

    yield server
    for fake in started:
        fake.shutdown()
        fake.server_close()


@pytest.fixture
def served(directory, way, serve):
    """A server with the model as it was before."""
    return serve(directory, backend=WAYS[way][0])


@pytest.fixture
def engine(served, way):
    return VLLMServer(served.address, WAYS[way][1]())
