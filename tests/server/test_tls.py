"""https with certificate files, and clients that verify the server's certificate."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import OpenError, SettingsError
from tenure.server.service import check_tls
from tenure.server_settings import Tls
from tests.server.certificates import Certificates, certificates
from tests.server.running import Running, running, token


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def served(files: Certificates) -> Iterator[Running]:
    with running(tls=Tls(cert=files.cert, key=files.key)) as made:
        yield made


def bearer() -> str:
    return token("default", "admin")["Authorization"].removeprefix("Bearer ")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_client_with_the_right_authority(host: str, served: Running, files: Certificates):
    with tenure.open(f"https://{host}:{served.port}", token=bearer(), ca_file=files.ca) as store:
        queue = store.queue("emails")
        queue.enqueue(bytes(300_000))
        delivery = queue.claim(wait=5)[0]
        assert delivery.payload == bytes(300_000)
        queue.ack(delivery)


def test_a_client_that_does_not_know_the_authority(served: Running):
    with pytest.raises(OpenError, match=r"certificate.* name the file of its authority in storage\.http\.ca_file"):
        tenure.open(f"https://localhost:{served.port}", token=bearer(), timeout=20)


def test_a_certificate_for_another_name(tmp_path: Path):
    other = certificates(tmp_path, "elsewhere.example")
    with running(tls=Tls(cert=other.cert, key=other.key)) as served, pytest.raises(OpenError, match="certificate"):
        tenure.open(f"https://localhost:{served.port}", token=bearer(), ca_file=other.ca, timeout=20)


def test_plain_http_is_not_spoken_there(served: Running):
    with pytest.raises(OpenError):
        tenure.open(f"http://localhost:{served.port}", token=bearer(), timeout=20)


def test_old_versions_are_not_spoken(served: Running, files: Certificates):
    import socket
    import warnings

    context = ssl.create_default_context(cafile=files.ca)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", served.port), timeout=10) as plain,
        pytest.raises((ssl.SSLError, OSError)),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_files_that_do_not_go(files: Certificates, tmp_path: Path):
    others = certificates(tmp_path)
    for tls in (
        Tls(cert=files.cert),
        Tls(key=files.key),
        Tls(cert=files.cert, key=others.key),
        Tls(cert="not-there", key=files.key),
        Tls(cert=files.key, key=files.cert),
    ):
        with pytest.raises(SettingsError, match=r"server\.tls"):
            check_tls(tls)
    check_tls(Tls())
    check_tls(Tls(cert=files.cert, key=files.key))
