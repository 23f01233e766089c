"""The operators of the library do what their names say."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from tests.live.harness import LONG, Got, service

from kaicep.errors import Mistake
from kaicep.live.graph import Operator, Supplier
from kaicep.live.kinds import function_of

needs = pytest.mark.skipif(
    not all(importlib.util.find_spec(each) for each in ("numba", "scipy", "cryptography")),
    reason="needs kaicep[live]",
)
pytestmark = needs
KEY = "000102030405060708090a0b0c0d0e0f"


def made(kind: str, inputs: int = 1, **settings):
    return function_of(Operator("o", kind, tuple(f"s{each}" for each in range(inputs)), settings))


def wave(count: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    true = 10 + 5 * np.cos(2 * np.pi * 0.02 * np.arange(count) + 0.3)
    return true, true + np.random.default_rng(seed).normal(0, noise, count)


def test_the_ekf_finds_the_wave_in_the_noise():
    true, seen = wave(2000, 1.0, 1)
    ekf = made("ekf", frequency=0.021, process=1e-5)
    found = np.concatenate(
        [ekf(seen[:1000]), ekf(seen[1000:])]
    )  # what it knows, it keeps from event to event
    assert np.std((found - true)[1000:]) < 0.3 * np.std((seen - true)[1000:])


def test_two_sensors_are_better_than_one():
    true, first = wave(2000, 1.0, 1)
    _, second = wave(2000, 1.0, 2)
    one = made("ekf", frequency=0.02, process=1e-5)(first)
    both = made("ekf", 2, frequency=0.02, process=1e-5)(first, second)
    assert np.std((both - true)[1000:]) < np.std((one - true)[1000:])


def test_the_ekf_gives_what_it_gets_bytes_for_bytes():
    found = made("ekf")(bytes(range(200)))
    assert (found.dtype, len(found)) == (np.uint8, 200)


def test_fft_is_the_transform_in_single_precision():
    samples = np.random.default_rng(0).integers(0, 255, 1024, dtype=np.uint8)
    found = made("fft")(samples)
    assert found.dtype == np.complex64
    np.testing.assert_allclose(found, np.fft.fft(samples.astype(float)), rtol=1e-4, atol=0.05)


def test_cat_joins_in_the_order_of_its_inputs():
    assert made("cat", 2)(b"ab", np.array([99], dtype=np.uint8)).tobytes() == b"abc"


@pytest.mark.parametrize("payload", [b"secret", np.frombuffer(b"secret", np.uint8)])
def test_aes_can_be_opened_with_the_key_and_not_be_changed(payload, monkeypatch):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    monkeypatch.setenv("THE_KEY", KEY)
    aes = made("aes", key_env="THE_KEY")
    sealed, again = aes(payload), aes(payload)
    assert sealed != again  # a nonce is used once
    cipher = AESGCM(bytes.fromhex(KEY))
    assert cipher.decrypt(sealed[:12], sealed[12:], None) == b"secret"
    with pytest.raises(InvalidTag):
        cipher.decrypt(sealed[:12], bytes([sealed[12] ^ 1]) + sealed[13:], None)


def test_a_key_may_be_in_a_file(tmp_path):
    (tmp_path / "key").write_text(KEY + "\n", "ascii")
    assert len(made("aes", key_file=str(tmp_path / "key"))(b"secret")) == 12 + 6 + 16
    with pytest.raises(Mistake, match="cannot read the file"):
        made("aes", key_file=str(tmp_path / "nokey"))


@pytest.mark.parametrize(
    ("text", "message"), [(None, "has no key"), ("abc", "holds no key"), ("00", "holds no key")]
)
def test_a_missing_or_wrong_key_is_told_before_anything_runs(text, message, monkeypatch):
    monkeypatch.delenv("THE_KEY", raising=False)
    if text is not None:
        monkeypatch.setenv("THE_KEY", text)
    with pytest.raises(Mistake, match=message) as caught:
        made("aes", key_env="THE_KEY")
    assert text is None or text not in str(caught.value).replace("THE_KEY", "")


def test_filters_pass_what_they_should_and_remember():
    time = np.arange(4000)
    slow, fast = np.sin(2 * np.pi * 0.005 * time), np.sin(2 * np.pi * 0.2 * time)
    low, whole = made("filter", high=0.05), made("filter", high=0.05)
    pieces = np.concatenate([low(each) for each in np.split(slow + fast, 8)])
    np.testing.assert_allclose(pieces, whole(slow + fast), atol=1e-9)
    assert np.std(pieces[2000:]) == pytest.approx(np.std(slow), rel=0.1)
    assert np.std(made("filter", low=0.2)(slow + fast)[2000:]) == pytest.approx(np.std(fast), rel=0.1)
    assert np.std(made("filter", low=0.1, high=0.2)(slow + fast)[2000:]) < 0.1


def test_windows_slide_by_their_step():
    window = made("window", size=3, step=2)
    found = [window(np.array([each])) for each in range(7)]
    assert [None if each is None else each.tolist() for each in found] == [
        None,
        None,
        [0, 1, 2],
        None,
        [2, 3, 4],
        None,
        [4, 5, 6],
    ]


def test_resampling_changes_the_number_of_datapoints():
    assert len(made("resample", up=1, down=4)(np.ones(400))) == 100
    assert len(made("resample", up=3, down=2)(np.ones(400))) == 600


def test_a_function_by_its_name():
    assert function_of(Operator("o", "python", ("s",), {"function": "math:sqrt"}))(9) == 3
    with pytest.raises(Mistake, match="cannot load math:root"):
        function_of(Operator("o", "python", ("s",), {"function": "math:root"}))


def test_a_kernel_of_numba_is_an_operator():
    import numba

    from kaicep.live.graph import operator

    @operator("s", name="total")
    @numba.njit(nogil=True)
    def total(samples):
        found = 0
        for each in samples:
            found += each
        return found

    got = Got()
    with service(Supplier("s"), total, got.consumer("c", "total")) as running:
        running.push("s", np.arange(10))
        assert running.drain(LONG)
    assert got.payloads("c") == [45]
