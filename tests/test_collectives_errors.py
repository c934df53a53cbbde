"""Bad arguments of the stacked collectives: the kind of error, and a message that helps.

Every message starts with the function's name, and names the rank, the value and what is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernelbench_dist import distributed_collectives as dc

X = torch.arange(24.0).view(4, 2, 3)  # 4 ranks with (2, 3) each
RAGGED = [torch.ones(2, 3), torch.ones(1, 3)]

# Every function that takes a stacked tensor, with as few arguments as it can have.
TAKES_RANKS: dict[str, Callable[[Any], Any]] = {
    "all_gather": dc.all_gather,
    "all_reduce": dc.all_reduce,
    "reduce_scatter": dc.reduce_scatter,
    "all_to_all": dc.all_to_all,
    "broadcast": dc.broadcast,
    "scatter": dc.scatter,
    "gather": dc.gather,
    "reduce": dc.reduce,
    "permute": lambda x: dc.permute(x, []),
    "shift": dc.shift,
    "scan": dc.scan,
}
TAKES_DIM: dict[str, Callable[..., Any]] = {
    "all_gather": lambda x, dim: dc.all_gather(x, dim),
    "gather": lambda x, dim: dc.gather(x, 0, dim),
    "reduce_scatter": lambda x, dim: dc.reduce_scatter(x, dim),
    "scatter": lambda x, dim: dc.scatter(x, 0, dim),
    "all_to_all": lambda x, dim: dc.all_to_all(x, dim, 0),
}
TAKES_OP: dict[str, Callable[..., Any]] = {
    "all_reduce": lambda x, op: dc.all_reduce(x, op),
    "reduce": lambda x, op: dc.reduce(x, 0, op),
    "reduce_scatter": lambda x, op: dc.reduce_scatter(x, 0, op, sizes=[2, 0, 0, 0]),
    "scan": lambda x, op: dc.scan(x, op),
}
TAKES_RANK: dict[str, tuple[str, Callable[..., Any]]] = {
    "broadcast": ("src", lambda x, rank: dc.broadcast(x, rank)),
    "scatter": ("src", lambda x, rank: dc.scatter(x, rank, sizes=[2, 0, 0, 0])),
    "gather": ("dst", lambda x, rank: dc.gather(x, rank)),
    "reduce": ("dst", lambda x, rank: dc.reduce(x, rank)),
}
EQUAL_SHAPES = ["all_reduce", "reduce_scatter", "broadcast", "reduce", "scan"]


def by_name(table: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fn", list(table))


@by_name(TAKES_RANKS)
class TestRanks:
    def raises(self, fn: str, x: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=rf"^{fn}: .*{re.escape(message)}"):
            TAKES_RANKS[fn](x)

    def test_wrong_kind(self, fn: str) -> None:
        accepted = "must be a stacked tensor (R, ...) or a list of R tensors, got "
        self.raises(fn, None, TypeError, accepted + "None (NoneType)")
        self.raises(fn, 1.5, TypeError, accepted + "1.5 (float)")
        self.raises(fn, (t for t in X), TypeError, accepted + "generator")
        self.raises(fn, {0: X[0]}, TypeError, accepted + "dict")
        self.raises(fn, [X[0], 3], TypeError, "rank 1 must be a tensor, got 3 (int)")

    def test_no_ranks(self, fn: str) -> None:
        self.raises(fn, [], ValueError, "the list is empty, 0 ranks")
        self.raises(fn, X[:0], ValueError, "x has shape (0, 2, 3), 0 ranks; it takes at least 1")
        self.raises(fn, torch.tensor(1.0), ValueError, "x is a scalar")

    def test_dtypes_disagree(self, fn: str) -> None:
        xs = [X[0], X[1], X[2].half()]
        message = "rank 2 has dtype torch.float16 and rank 0 has torch.float32"
        self.raises(fn, xs, TypeError, message)

    def test_devices_disagree(self, fn: str) -> None:
        self.raises(fn, [X[0], X[1].to("meta")], TypeError, "rank 1 is on meta and rank 0 on cpu")

    def test_layouts(self, fn: str) -> None:
        self.raises(fn, X.to_sparse(), TypeError, "x has layout torch.sparse_coo; only")
        self.raises(fn, [X[0], X[1].to_sparse()], TypeError, "rank 1 has layout torch.sparse_coo")

    @pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
    def test_quantized(self, fn: str) -> None:
        x = torch.quantize_per_tensor(X, 1.0, 0, torch.quint8)
        self.raises(fn, x, TypeError, "x has dtype torch.quint8")


@pytest.mark.parametrize("fn", EQUAL_SHAPES)
def test_shapes_disagree(fn: str) -> None:
    message = r"rank 1 has shape \(1, 3\) and rank 0 has \(2, 3\); all ranks must have one shape"
    with pytest.raises(ValueError, match=f"^{fn}: {message}"):
        TAKES_RANKS[fn](RAGGED)
    # As many elements in another shape is no better.
    with pytest.raises(ValueError, match=r"rank 1 has shape \(3, 2\) and rank 0 has \(2, 3\)"):
        TAKES_RANKS[fn]([torch.ones(2, 3), torch.ones(3, 2)])


@by_name(TAKES_DIM)
class TestDim:
    def test_wrong_kind(self, fn: str) -> None:
        for dim, shown in ((1.0, r"1\.0 \(float\)"), (True, r"True \(bool\)"), (None, "None")):
            with pytest.raises(TypeError, match=f"^{fn}: .*dim must be an int, got {shown}"):
                TAKES_DIM[fn](X, dim)

    @pytest.mark.parametrize("dim", [2, -3])
    def test_out_of_range(self, fn: str, dim: int) -> None:
        message = rf"dim={dim} is out of range for shape \(2, 3\) of one rank; it takes -2 to 1"
        with pytest.raises(ValueError, match=f"^{fn}: .*{message}"):
            TAKES_DIM[fn](X, dim)

    def test_scalars(self, fn: str) -> None:
        for x in (torch.tensor([123, 456]), [torch.tensor(123), torch.tensor(456)]):
            with pytest.raises(
                ValueError, match=rf"^{fn}: .*scalar.*x\.unsqueeze\(1\).*join\(xs\)"
            ):
                TAKES_DIM[fn](x, 0)


@pytest.mark.parametrize("fn", ["all_gather", "gather"])
def test_ranks_may_differ_along_dim_only(fn: str) -> None:
    message = (
        r"rank 1 has shape \(1, 3\) and rank 0 has \(2, 3\); ranks may differ along dim 1 only"
    )
    with pytest.raises(ValueError, match=f"^{fn}: {message}"):
        TAKES_DIM[fn](RAGGED, -1)
    # torch.cat skips a tensor of shape (0,) and returns the other one.
    with pytest.raises(ValueError, match=r"rank 1 has shape \(2, 3\) and rank 0 has \(0,\)"):
        TAKES_DIM[fn]([torch.ones(0), torch.ones(2, 3)], 0)
    with pytest.raises(ValueError, match=r"rank 1 has shape \(0,\) and rank 0 has \(2, 3\)"):
        TAKES_DIM[fn]([torch.ones(2, 3), torch.ones(0)], 0)


@by_name(TAKES_OP)
class TestOp:
    @pytest.mark.parametrize("op", ["mean", "SUM", "", None, 0, [], torch.tensor(1)])
    def test_unknown(self, fn: str, op: Any) -> None:
        listed = "sum, prod, min, max, band, bor, bxor"
        if fn != "scan":
            listed = listed.replace("sum,", "sum, avg,")
        message = re.escape(f"op {op!r} is not one of {listed}, or the torch.distributed.ReduceOp")
        with pytest.raises(ValueError, match=f"^{fn}: {message}"):
            TAKES_OP[fn](X, op)

    def test_reduce_op_without_a_name_here(self, fn: str) -> None:
        with pytest.raises(ValueError, match=f"^{fn}: op .*PREMUL_SUM.* is not one of sum, "):
            TAKES_OP[fn](X, torch.distributed.ReduceOp.PREMUL_SUM)

    @pytest.mark.parametrize(
        ("op", "dtype"),
        [
            ("min", torch.complex64),
            ("max", torch.complex128),
            ("band", torch.float32),
            ("bor", torch.bfloat16),
            ("bxor", torch.complex64),
            ("sum", torch.float8_e4m3fn),
            ("prod", torch.uint16),
        ],
    )
    def test_dtype_without_the_op(self, fn: str, op: str, dtype: torch.dtype) -> None:
        message = f"op '{op}' is not defined for {dtype}; it takes torch"
        with pytest.raises(TypeError, match=f"^{fn}: {message}"):
            TAKES_OP[fn](X.to(dtype), op)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
    @pytest.mark.parametrize("op", ["avg", torch.distributed.ReduceOp.AVG])
    def test_average_of_integers(self, fn: str, op: Any, dtype: torch.dtype) -> None:
        if fn == "scan":
            with pytest.raises(ValueError, match=r"^scan: op .* is not one of sum, prod, "):
                TAKES_OP[fn](X.to(dtype), op)
        else:
            message = f"op 'avg' is not defined for {dtype}; it takes torch.float16, "
            with pytest.raises(TypeError, match=f"^{fn}: {message}"):
                TAKES_OP[fn](X.to(dtype), op)


def test_average_has_no_scan() -> None:
    with pytest.raises(ValueError, match=r"^scan: op 'avg' is not one of sum, prod, min, max, "):
        dc.scan(X, "avg")


@by_name(TAKES_RANK)
class TestRank:
    @pytest.mark.parametrize("rank", [4, -1])
    def test_out_of_range(self, fn: str, rank: int) -> None:
        name, call = TAKES_RANK[fn]
        with pytest.raises(
            ValueError, match=f"^{fn}: {name}={rank} is not a rank; it takes 0 to 3"
        ):
            call(X, rank)

    @pytest.mark.parametrize("rank", [1.0, True, None, "0"])
    def test_wrong_kind(self, fn: str, rank: Any) -> None:
        name, call = TAKES_RANK[fn]
        with pytest.raises(TypeError, match=f"^{fn}: {name} must be an int, got {rank!r} "):
            call(X, rank)


@pytest.mark.parametrize(
    ("fn", "call"),
    [
        ("reduce_scatter", lambda sizes: dc.reduce_scatter(X, 1, sizes=sizes)),
        ("scatter", lambda sizes: dc.scatter(X, 2, 1, sizes=sizes)),
    ],
)
class TestSizes:
    def test_indivisible_dim(self, fn: str, call: Callable[[Any], Any]) -> None:
        rank = 2 if fn == "scatter" else 0
        message = (
            rf"dim 1 of rank {rank}'s shape \(2, 3\) cannot be cut into 4 equal parts; "
            "give sizes, 4 ints that sum to it"
        )
        with pytest.raises(ValueError, match=f"^{fn}: {message}"):
            call(None)

    def test_wrong_sizes(self, fn: str, call: Callable[[Any], Any]) -> None:
        with pytest.raises(ValueError, match=rf"^{fn}: sizes=\[1, 2\] has length 2; it takes 4"):
            call([1, 2])
        with pytest.raises(ValueError, match=rf"^{fn}: sizes\[2\]=-1; it takes at least 0"):
            call([1, 2, -1, 1])
        message = r"sizes=\[1, 1, 1, 1\] sums to 4, but dim 1 of rank \d's shape \(2, 3\) is 3"
        with pytest.raises(ValueError, match=f"^{fn}: {message}"):
            call([1, 1, 1, 1])

    def test_wrong_kind(self, fn: str, call: Callable[[Any], Any]) -> None:
        with pytest.raises(
            TypeError, match=rf"^{fn}: sizes must be a list of 4 ints, got 3 \(int\)"
        ):
            call(3)
        with pytest.raises(
            TypeError, match=rf"^{fn}: sizes\[3\] must be an int, got 1.0 \(float\)"
        ):
            call([1, 1, 0, 1.0])


class TestAllToAll:
    def test_indivisible_split_dim(self) -> None:
        message = r"^all_to_all: dim 1 of rank 0's shape \(2, 3\) cannot be cut into 4 equal parts"
        with pytest.raises(ValueError, match=message):
            dc.all_to_all(X, 1, 0)
        with pytest.raises(ValueError, match=r"dim 0 of rank 1's shape \(1, 3\) cannot be cut"):
            dc.all_to_all(RAGGED)

    def test_wrong_splits(self) -> None:
        x = torch.ones(2, 3)
        with pytest.raises(TypeError, match="splits must be a list of 2 rows, got 3"):
            dc.all_to_all(x, splits=3)
        with pytest.raises(ValueError, match="splits has 1 rows; it takes 2, one a rank"):
            dc.all_to_all(x, splits=[[1, 2]])
        with pytest.raises(TypeError, match=r"splits\[1\] must be a list of 2 ints, got 3"):
            dc.all_to_all(x, splits=[[1, 2], 3])
        with pytest.raises(ValueError, match=r"splits\[0\]=\[3\] has length 1; it takes 2"):
            dc.all_to_all(x, splits=[[3], [1, 2]])
        with pytest.raises(ValueError, match=r"splits\[1\]\[0\]=-1; it takes at least 0"):
            dc.all_to_all(x, splits=[[1, 2], [-1, 4]])
        with pytest.raises(
            ValueError, match=r"splits\[1\]=\[2, 2\] sums to 4, but dim 0 of rank 1"
        ):
            dc.all_to_all(x, splits=[[1, 2], [2, 2]])

    def test_parts_that_cannot_be_joined(self) -> None:
        message = (
            r"rank 0 would get shape \(2, 4\) from rank 1 and \(1, 4\) from rank 0; "
            "what a rank gets may differ along concat_dim 1 only"
        )
        with pytest.raises(ValueError, match=message):
            dc.all_to_all(torch.ones(2, 3, 4), 0, 1, splits=[[1, 2], [2, 1]])

    def test_numbers_of_dims_disagree(self) -> None:
        with pytest.raises(ValueError, match=r"rank 1 has shape \(2,\) and rank 0 has \(2, 2\)"):
            dc.all_to_all([torch.ones(2, 2), torch.ones(2)], 1, 1)


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        ([(0, 4)], ValueError, r"pairs\[0\]\[1\]=4 is not a rank; it takes 0 to 3"),
        ([(0, 1), (-1, 0)], ValueError, r"pairs\[1\]\[0\]=-1 is not a rank"),
        ([(0, 1), (0, 2)], ValueError, "rank 0 is a source twice; a rank sends at most once"),
        ([(0, 1), (2, 1)], ValueError, "rank 1 is a destination twice; a rank receives at most"),
        ([(0, 1.0)], TypeError, r"pairs\[0\]\[1\] must be an int, got 1.0"),
        ([(True, 1)], TypeError, r"pairs\[0\]\[0\] must be an int, got True"),
        ([(0, 1, 2)], TypeError, r"pairs\[0\] must be \(source, destination\), got \(0, 1, 2\)"),
        ([0, 1], TypeError, r"pairs\[0\] must be \(source, destination\), got 0"),
        (None, TypeError, r"pairs must be a list of \(source, destination\), got None"),
        ({0: 1}, TypeError, r"pairs must be a list of \(source, destination\), got dict"),
    ],
)
def test_permute(pairs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^permute: {message}"):
        dc.permute(X, pairs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dc.shift(X, 1.0), "shift: by must be an int, got 1.0"),
        (lambda: dc.shift(X, True), "shift: by must be an int, got True"),
        (lambda: dc.shift(X, 1, 0), "shift: wrap must be a bool, got 0"),
        (lambda: dc.scan(X, "sum", 1), "scan: exclusive must be a bool, got 1"),
        (lambda: dc.all_gather(X, stacked=1), "all_gather: stacked must be a bool, got 1"),
        (lambda: dc.all_reduce(X, stacked=None), "all_reduce: stacked must be a bool, got None"),
        (lambda: dc.broadcast(X, stacked="yes"), "broadcast: stacked must be a bool, got 'yes'"),
        (lambda: dc.replicate(X, 2.0), "replicate: R must be an int, got 2.0"),
        (lambda: dc.replicate([X], 2), "replicate: x must be a tensor, got list"),
        (lambda: dc.split([X]), "split: x must be a tensor, got list"),
        (lambda: dc.join(X), "join: xs must be a list of R tensors, got Tensor"),
        (lambda: dc.join([X, 1]), "join: rank 1 must be a tensor, got 1"),
    ],
)
def test_wrong_kinds_of_other_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}"):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dc.replicate(X, 0), "replicate: R=0; it takes at least 1 rank"),
        (lambda: dc.split(X[:0]), r"split: x has shape \(0, 2, 3\), 0 ranks"),
        (lambda: dc.split(torch.tensor(1)), "split: x is a scalar"),
        (lambda: dc.join([]), "join: the list is empty, 0 ranks"),
        (lambda: dc.join(RAGGED), r"join: rank 1 has shape \(1, 3\) and rank 0 has \(2, 3\)"),
    ],
)
def test_wrong_shapes_of_join_split_and_replicate(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
