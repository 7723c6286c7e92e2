import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod import Codec, PayloadError
from hgc_horovod.core import wire

from . import slow
from .samples import BITS, LARGEST, TINY, as_bytes, gaussian, hybrid, same_bits, snapshot, tensors

DEGENERATE = {
    "no entry": [],
    "one": [2.0],
    "one zero": [0.0],
    "two": [-1.0, 3.0],
    "zeros": [0.0] * 20,
    "negative zeros": [-0.0] * 20,
    "constant": [0.3] * 20,
    "single": [0.0] * 7 + [-5.0] + [0.0] * 12,
    "denormal": [TINY, -3 * TINY] * 10,
    "largest": [LARGEST, -LARGEST] * 10,
    "all magnitudes": [TINY, 1e-30, -1.0, 1e30, LARGEST, 0.0],
}


@pytest.mark.parametrize("bits", BITS)
@given(tensor=tensors(), density=st.floats(0.01, 1))
def test_the_first_payload_by_an_independent_encoder(bits, tensor, density):
    method = hybrid(density, bits)
    payload = Codec(method, tensor.size).encode(tensor)
    assert payload.dtype == np.uint8
    # What is encoded is residual + gradient, 0 + gradient here, which makes a negative zero a positive one.
    data = slow.encode([0.0 + v for v in tensor.tolist()], method.slots(tensor.size), bits)
    assert payload.tobytes() == data
    decoded = Codec(method, tensor.size).decode_sum([payload])
    assert np.array_equal(decoded, np.array(slow.decode(data), np.float32))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("density", [0.001, 0.25, 1.0])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_tensors(case, density, bits):
    tensor = np.array(DEGENERATE[case], np.float32)
    codec = Codec(hybrid(density, bits), tensor.size)
    payload = codec.encode(tensor)
    decoded = codec.decode_sum([payload])
    header = wire.read_header(payload)
    assert min(1, tensor.size) <= header.k <= tensor.size == header.n
    assert payload.size == codec.method.payload_bytes(tensor.size)
    assert np.isfinite(decoded).all() and np.isfinite(codec.residual).all()
    assert not decoded[tensor == 0].any() and not codec.residual[tensor == 0].any()
    assert np.count_nonzero(decoded) <= min(header.k, np.count_nonzero(tensor))
    again = codec.encode(np.zeros_like(tensor))
    assert again.size == payload.size


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", ">f8", "g"])
def test_any_floating_dtype_and_layout(dtype):
    values = np.round(gaussian(40), 2).astype(np.float16)
    plain = Codec(hybrid(), 40)
    expected = plain.encode(values.astype(np.float32))
    gradient = np.repeat(values.astype(dtype), 2)[::2]
    gradient.setflags(write=False)
    codec = Codec(hybrid(), 40)
    assert codec.encode(gradient).tobytes() == expected.tobytes()
    assert codec.residual.dtype == np.float32 and same_bits(codec.residual, plain.residual)


def test_the_gradient_stays_as_it_is_and_is_not_kept():
    for method in (hybrid(), hybrid(momentum=0.9), hybrid(momentum=0.9, masking=True, clip=1.0)):
        gradient, codec = gaussian(30), Codec(method, 30)
        before = gradient.tobytes()
        codec.encode(gradient)
        assert gradient.tobytes() == before
        state = snapshot(codec)
        gradient[:] = 9
        assert snapshot(codec) == state


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(4),
        np.zeros(6),
        np.zeros((5, 1)),
        np.zeros(()),
        np.zeros(5, np.int64),
        np.zeros(5, bool),
        np.zeros(5, complex),
        "gradient",
        None,
    ],
)
def test_gradients_and_weights_of_another_kind_are_refused(wrong):
    codec = Codec(hybrid(), 5, name="conv.weight")
    with pytest.raises(ValueError, match=r"gradient.*conv\.weight"):
        codec.encode(wrong)
    if wrong is not None:
        with pytest.raises(ValueError, match="weight"):
            codec.encode(np.ones(5, np.float32), wrong, 0.1)
    assert codec.step == 0 and not codec.residual.any()


@pytest.mark.parametrize("bits", BITS)
def test_sizes_follow_from_the_step_alone(bits):
    codec = Codec(hybrid(0.01, bits, warmup=[0.5, 0.2], warmup_steps=4), 1000)
    sizes = []
    for step in range(7):
        nothing = codec.encode_nothing()
        sparse = gaussian(1000, step) * (np.arange(1000) < 10**step)
        assert codec.encode(sparse).size == nothing.size == codec.method.payload_bytes(1000, step)
        sizes.append(nothing.size)
    assert len(set(sizes)) == 3 and sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("density", [0.1, 1.0])
def test_a_payload_of_nothing_decodes_to_zeros_and_changes_nothing(density, bits):
    codec = Codec(hybrid(density, bits, momentum=0.5), 50)
    codec.encode(gaussian(50))
    before = snapshot(codec)
    payload = codec.encode_nothing()
    assert same_bits(codec.decode_sum([payload]), np.zeros(50, np.float32))
    assert snapshot(codec) == before


def test_a_million_entries_within_the_promised_bits():
    n, k = 10**6, 10**4
    codec, gradient = Codec(hybrid(0.01, 4), n), gaussian(n)
    payload = codec.encode(gradient)
    assert 8 * payload.size / k <= 8.9 + 4
    sent = np.flatnonzero(codec.decode_sum([payload]))
    assert sent.size == k
    assert np.abs(gradient[sent]).min() >= np.delete(np.abs(gradient), sent).max()


@given(st.lists(tensors(8, 8), max_size=5), st.sampled_from(BITS))
def test_the_sum_is_taken_in_the_order_given(several, bits):
    method = hybrid(0.4, bits)
    payloads = [Codec(method, 8).encode(tensor) for tensor in several]
    expected = np.zeros(8, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for payload in payloads:
            expected = expected + np.array(slow.decode(payload.tobytes()), np.float32)
        assert np.array_equal(Codec(method, 8).decode_sum(payloads), expected, equal_nan=True)


def test_the_order_of_a_sum_matters():
    codec = Codec(hybrid(1.0, 32), 1)
    one, large, minus = (codec.encode(np.array([v], np.float32)) for v in (1.0, 1e30, -1e30))
    assert codec.decode_sum([large, minus, one]) == 1 and codec.decode_sum([large, one, minus]) == 0


def test_the_sum_goes_into_out():
    codec = Codec(hybrid(), 30)
    payloads = [codec.encode(gaussian(30, seed)) for seed in range(3)]
    expected = codec.decode_sum(payloads)
    for out in (np.full(30, np.nan, np.float32), np.full((30, 2), 5, np.float32)[:, 1]):
        assert codec.decode_sum(payloads, out=out) is out
        assert np.array_equal(out, expected)
    assert not codec.decode_sum([], out=out).any()


@pytest.mark.parametrize(("shape", "dtype"), [(30, float), (29, "f4"), ((1, 30), "f4"), (30, "i4")])
def test_an_out_of_another_kind_is_refused(shape, dtype):
    codec, out = Codec(hybrid(), 30), np.ones(shape, dtype)
    with pytest.raises(ValueError, match="out must be float32"):
        codec.decode_sum([codec.encode(gaussian(30))], out=out)
    assert (out == 1).all()


def test_a_payload_of_another_tensor_is_refused_before_anything_is_written():
    codec, out = Codec(hybrid(), 30, name="fc.bias"), np.full(30, 7, np.float32)
    good, foreign = codec.encode(gaussian(30)), Codec(hybrid(), 31).encode(gaussian(31))
    for payloads in ([foreign], [good, foreign], [foreign, good], [good, good[:-1]], [as_bytes(b"")]):
        with pytest.raises(PayloadError):
            codec.decode_sum(payloads, out=out)
        assert (out == 7).all()
    with pytest.raises(PayloadError, match=r"fc\.bias.*30.*31"):
        codec.decode_sum([foreign])


def test_payloads_of_other_methods_are_read():
    gradient = gaussian(30)
    payloads = [Codec(hybrid(0.2, bits), 30).encode(gradient) for bits in BITS]
    total = Codec(hybrid(), 30).decode_sum(payloads)
    expected = sum(np.array(slow.decode(p.tobytes())) for p in payloads)
    assert total == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("argument", "bad"),
    [
        ("size", -1),
        ("size", 2**31),
        ("size", 1.5),
        ("size", True),
        ("rank", -1),
        ("world_size", 0),
        ("seed", -1),
        ("seed", "x"),
    ],
)
def test_bad_arguments_are_refused_by_name(argument, bad):
    with pytest.raises(ValueError, match=argument):
        Codec(hybrid(), **{"size": 5, argument: bad})


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf, 1e39, "x", None])
def test_decoding_refuses_a_factor(factor):
    codec = Codec(hybrid(), 10)
    payload = codec.encode(np.ones(10, np.float32))
    with pytest.raises(ValueError, match="factor"):
        codec.decode_sum([payload], factor=factor)


@pytest.mark.parametrize("count", [1.5, "a", None, -1])
def test_decoding_refuses_a_count(count):
    codec = Codec(hybrid(), 10)
    payload = codec.encode(np.ones(10, np.float32))
    with pytest.raises(ValueError, match="count"):
        codec.decode_gathered(payload, count)
