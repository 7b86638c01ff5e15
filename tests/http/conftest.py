import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import client
import devices

TIMES = {}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Folder of a device checkpoint, made once: checkpoints("chain"), checkpoints("rand", context=512), ..."""
    made = {}

    def get(kind, **options):
        key = (kind, *sorted(options.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("models") / f"{kind}{len(made)}"
            made[key] = devices.write_checkpoint(str(folder), kind, **options)
        return made[key]

    return get


@pytest.fixture
def start(checkpoints):
    """Starts a daemon for one test: start("chain", "--max-n", "4"), start("chain", fake=True), start("/a/folder")."""
    running = []

    def run(model="chain", *options, fake=False, wait="ready", env=None, **device):
        folder = model if os.path.isabs(str(model)) else checkpoints(model, **device)
        d = client.Daemon(folder, *options, binary=client.FAKE if fake else None, wait=wait, env=env)
        running.append(d)
        return d

    yield run
    for d in running:
        d.stop()
    for d in running:
        assert d.process.returncode in (0, 1), "\n".join(d.log[-60:])


@pytest.fixture(scope="session")
def chain(checkpoints):
    """A daemon on CHAIN that most tests share; ends with the idle check."""
    d = client.Daemon(checkpoints("chain"), "--log-requests")
    yield d
    d.flush_and_check()
    code, _ = d.stop()
    assert code == 0, "\n".join(d.log[-60:])


@pytest.fixture(scope="session")
def rand(checkpoints):
    d = client.Daemon(checkpoints("rand"))
    yield d
    d.flush_and_check()
    code, _ = d.stop()
    assert code == 0, "\n".join(d.log[-60:])


@pytest.fixture
def idle(chain):
    """The shared daemon, and the idle check after the test."""
    yield chain
    chain.wait_idle(5)


def pytest_runtest_logreport(report):
    TIMES[report.nodeid] = TIMES.get(report.nodeid, 0) + report.duration


def pytest_sessionfinish(session):
    path = os.path.join(client.ROOT, "build", "http-times")
    if os.path.isdir(os.path.dirname(path)):
        with open(path, "w") as f:
            for name, seconds in sorted(TIMES.items(), key=lambda x: -x[1]):
                f.write(f"{seconds:.2f} {name}\n")
