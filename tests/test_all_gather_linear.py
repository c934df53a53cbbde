"""all_gather_linear: values and gradients, against float64 and by hand, on every device."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from linear_cases import FLOATS, factor, random_call, reference

from kernelbench_dist import build_info, ops
from kernelbench_dist.testing import assert_matches, linear_oracle, linear_problems


class TestValues:
    @given(data=st.data())
    def test_equals_the_oracle(self, device, data):
        p = data.draw(linear_problems(device=device, requires_grad=False))
        assert_matches(ops.all_gather_linear, linear_oracle, *p.args, c=factor(p.weight.shape[1]))

    @given(data=st.data())
    def test_equals_cat_and_linear(self, device, data):
        p = data.draw(linear_problems(device=device, requires_grad=False))
        expected = reference(*p.args)
        scale = reference(*(None if t is None else t.double().abs() for t in p.args))
        # Either may round once, and each sum in its own order.
        assert_matches(
            ops.all_gather_linear,
            lambda *_: expected.double(),
            *p.args,
            scale=scale,
            c=1 + 2 * factor(p.weight.shape[1]),
        )

    @given(data=st.data())
    def test_nonfinite_values_have_the_class_of_linear(self, device, data):
        p = data.draw(
            linear_problems(device=device, requires_grad=False, nonfinite=True, max_ranks=4)
        )
        wide = [None if t is None else t.double() for t in p.args]
        ours, exact = ops.all_gather_linear(*p.args), reference(*wide)
        assert torch.equal(ours.isnan(), exact.isnan())
        assert torch.equal(ours[exact.isinf()].double(), exact[exact.isinf()])

    def test_a_sum_done_by_hand(self, device):
        x = torch.arange(12.0, device=device).view(2, 2, 3)
        weight = torch.arange(24.0, device=device).view(4, 6) - 10
        bias = torch.arange(1.0, 5.0, device=device)
        expected = [[-148, -3, 142, 287], [-283, -30, 223, 476]]
        assert ops.all_gather_linear(x, weight, bias).tolist() == expected

    def test_one_output(self, device):
        x = torch.arange(6.0, device=device).view(2, 1, 3)
        weight = torch.arange(1.0, 7.0, device=device).view(1, 6)
        bias = torch.tensor([0.5], device=device)
        assert ops.all_gather_linear(x, weight, bias).tolist() == [[70.5]]
        assert ops.all_gather_linear(x[:, :0], weight, bias).shape == (0, 1)

    @pytest.mark.parametrize(("R", "B", "H", "K"), [(3, 5, 46, 9), (1, 3, 7, 13), (5, 2, 157, 3)])
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_rows_that_are_not_16_byte_aligned(self, device, dtype, R, B, H, K):
        call = random_call(R, B, H, K, dtype, device)
        assert_matches(ops.all_gather_linear, linear_oracle, *call, c=factor(R * H))

    @pytest.mark.parametrize("B", [1, 2, 63, 64, 65, 257])
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_every_row_when_rows_grow(self, device, dtype, B):
        x, weight, bias = random_call(4, B, 16, 40, dtype, device)
        x = x + torch.arange(B, device=device).view(1, B, 1).to(dtype)
        assert_matches(ops.all_gather_linear, linear_oracle, x, weight, bias, c=factor(64))

    def test_a_row_alone_and_among_others(self, device):
        for dtype in (torch.float32, torch.bfloat16):
            x, weight, bias = random_call(4, 24, 32, 112, dtype, device)
            exact, scale = linear_oracle(x[:, :1], weight, bias)
            for rows in (x[:, :1], x):
                assert_matches(
                    lambda *a: ops.all_gather_linear(*a)[:1],
                    lambda *_, exact=exact: exact,
                    rows,
                    weight,
                    bias,
                    scale=scale,
                    c=factor(128),
                )

    def test_fp16_accumulates_in_float32(self, device):
        x = torch.full((4, 1, 32), 100.0, dtype=torch.float16, device=device)
        weight = torch.full((1, 128), 100.0, dtype=torch.float16, device=device)
        weight[:, 64:] = -100
        assert ops.all_gather_linear(x, weight).item() == 0.0
        weight.fill_(10)
        assert ops.all_gather_linear(x, weight).item() == math.inf
        assert ops.all_gather_linear(x.float(), weight.float()).item() == 128000.0

    def test_float32_is_not_rounded_to_tf32(self, device):
        for value in (1 + 2**-11, 1 + 2**-10 + 2**-13):
            x = torch.full((2, 8, 16), value, device=device)
            out = ops.all_gather_linear(x, torch.eye(32, device=device))
            assert (out == value).all()

    @pytest.mark.parametrize(
        "shape", [(4, 0, 32), (4, 3, 0), (4, 32), (4, 2, 3, 8), (4, 2, 0, 3, 8), (1, 1, 1)]
    )
    def test_shapes_with_nothing_in_them_or_many_batch_dims(self, device, shape):
        x = torch.randn(shape, device=device, requires_grad=True)
        weight = torch.randn(112, 4 * shape[-1] if shape[0] == 4 else 1, device=device)
        weight.requires_grad_()
        bias = torch.randn(112, device=device, requires_grad=True)
        out = ops.all_gather_linear(x, weight, bias)
        assert out.shape == (*shape[1:-1], 112)
        torch.testing.assert_close(out, reference(x, weight, bias))
        out.sum().backward()
        rows = out.numel() / 112
        assert x.grad.shape == x.shape
        assert weight.grad.shape == weight.shape
        assert (bias.grad == rows).all()
        if rows == 0:
            assert (weight.grad == 0).all()

    def test_no_outputs(self, device):
        out = ops.all_gather_linear(torch.ones(2, 3, 4, device=device), torch.ones(0, 8).to(device))
        assert out.shape == (3, 0)

    def test_the_same_bits_on_every_run(self, device):
        torch.use_deterministic_algorithms(True)
        try:
            for dtype in FLOATS:
                x, weight, bias = random_call(4, 25, 32, 113, dtype, device)
                for t in (x, weight, bias):
                    t.requires_grad_()
                runs = []
                for _ in range(20):
                    out = ops.all_gather_linear(x, weight, bias)
                    grads = torch.autograd.grad(out.square().sum(), (x, weight, bias))
                    runs.append([out.detach(), *grads])
                for run in runs:
                    for tensor, first in zip(run, runs[0], strict=True):
                        assert tensor.isfinite().all()
                        assert torch.equal(tensor, first)
        finally:
            torch.use_deterministic_algorithms(False)


class TestByRank:
    """The CPU's way for many rows and few outputs, which the properties above do not reach."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize(
        "strided",
        [
            lambda x: x,
            lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
            lambda x: x[:, :1].expand_as(x),
            lambda x: x.view(2, 10, 30, 64).transpose(1, 2),
        ],
    )
    def test_equals_the_oracle(self, dtype, bias, strided):
        x, weight, b = random_call(2, 300, 64, 64, dtype)
        call = strided(x), weight, b if bias else None
        assert ops.plan("all_gather_linear", *call).kernel == "cpu_by_rank"
        assert_matches(ops.all_gather_linear, linear_oracle, *call, c=factor(128))

    def test_one_row(self):
        x, weight, bias = random_call(2, 1, 9000, 5)
        assert ops.plan("all_gather_linear", x[:, 0], weight, bias).kernel == "cpu_by_rank"
        assert_matches(ops.all_gather_linear, linear_oracle, x[:, 0], weight, bias, c=factor(18000))


class TestGradients:
    @given(data=st.data())
    def test_equal_the_reference_in_float64(self, device, data):
        p = data.draw(linear_problems(device=device, max_ranks=16, max_side=20))
        exact = [None if t is None else t.detach().double().requires_grad_() for t in p.args]
        given_grad = [t for t in p.args if t is not None and t.requires_grad]
        if not given_grad:
            assert not ops.all_gather_linear(*p.args).requires_grad
            return
        out, exact_out = ops.all_gather_linear(*p.args), reference(*exact)
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
        grads = torch.autograd.grad(out, given_grad, upstream)
        wanted = [
            e for e, t in zip(exact, p.args, strict=True) if t is not None and t.requires_grad
        ]
        # The gradients are sums of products too; the scale is the same sum over absolute values.
        exact_grads = torch.autograd.grad(exact_out, wanted, upstream.double(), retain_graph=True)
        absolute = [None if t is None else t.detach().abs().requires_grad_() for t in exact]
        scales = torch.autograd.grad(
            reference(*absolute),
            [a for a, t in zip(absolute, p.args, strict=True) if t is not None and t.requires_grad],
            upstream.double().abs(),
        )
        terms = max(out.shape[-1], out.numel() // max(out.shape[-1], 1), 1)
        for grad, exact_grad, scale, leaf in zip(
            grads, exact_grads, scales, given_grad, strict=True
        ):
            assert_matches(
                lambda _, g=grad: g, lambda _, e=exact_grad: e, leaf, scale=scale, c=factor(terms)
            )

    @pytest.mark.parametrize(
        ("wanted", "gradient"),
        # Each element of x meets the 5 outputs; each weight, and each bias, the 3 rows.
        [("x", 5.0), ("weight", 3.0), ("bias", 3.0)],
    )
    def test_of_one_operand_alone(self, device, wanted, gradient):
        operands = {
            "x": torch.ones(2, 3, 4, device=device),
            "weight": torch.ones(5, 8, device=device),
            "bias": torch.ones(5, device=device),
        }
        operands[wanted].requires_grad_()
        ops.all_gather_linear(**operands).sum().backward()
        assert operands[wanted].grad.unique().tolist() == [gradient]
        assert [name for name, t in operands.items() if t.grad is not None] == [wanted]

    def test_through_a_strided_view_of_what_came_before(self, device):
        trunk = torch.randn(4, 32, 12, device=device, requires_grad=True)
        weight = torch.randn(56, 128, device=device)
        ops.all_gather_linear((trunk * 2).transpose(1, 2), weight).sum().backward()
        ours, trunk.grad = trunk.grad, None
        reference((trunk * 2).transpose(1, 2), weight).sum().backward()
        torch.testing.assert_close(ours, trunk.grad)

    @pytest.mark.parametrize("R", [1, 3])
    def test_gradcheck_and_gradgradcheck(self, device, R):
        call = random_call(R, 3, 4, 5, torch.float64, device)
        for t in call:
            t.requires_grad_()
        assert torch.autograd.gradcheck(
            ops.all_gather_linear, call, check_forward_ad=True, check_batched_grad=True
        )
        assert torch.autograd.gradgradcheck(ops.all_gather_linear, call)

    @pytest.mark.parametrize("sizes", [(2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)])
    def test_twice_where_a_size_is_zero(self, device, sizes):
        call = [t.requires_grad_() for t in random_call(*sizes, torch.float64, device)]
        out = ops.all_gather_linear(*call)
        grads = torch.autograd.grad(out, call, torch.ones_like(out), create_graph=True)
        assert [g.shape for g in grads] == [t.shape for t in call]
        again = torch.autograd.grad(sum(g.sum() for g in grads), call, allow_unused=True)
        for g, t in zip(again, call, strict=True):
            assert g is None or g.shape == t.shape

    @pytest.mark.parametrize(("B", "K"), [(128, 5), (129, 5), (5, 128), (5, 129)])
    def test_where_the_kernel_of_all_three_ends(self, device, B, K):
        call = [t.requires_grad_() for t in random_call(3, B, 8, K, torch.float64, device)]
        upstream = torch.ones((), dtype=torch.float64, device=device).expand(B, K)
        torch.testing.assert_close(
            torch.autograd.grad(ops.all_gather_linear(*call), call, upstream),
            torch.autograd.grad(reference(*call), call, upstream),
        )

    def test_a_frozen_weight_does_not_keep_x_alive(self, device):
        weight = torch.randn(5, 8, device=device)
        x = torch.randn(2, 3, 4, device=device, requires_grad=True)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: kept.append(t.shape) or t, lambda t: t
        ):
            ops.all_gather_linear(x, weight)
        assert kept == [weight.shape]

    def test_change_in_place_after_saving_is_an_error(self, device):
        x = torch.randn(2, 3, 4, device=device)
        weight = torch.randn(5, 8, device=device, requires_grad=True)
        out = ops.all_gather_linear(x, weight)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    def test_no_gathered_copy_is_kept_for_backward(self, device):
        x, weight, _ = random_call(4, 64, 32, 8, device=device)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: saved.append(t.untyped_storage().data_ptr()) or t, lambda t: t
        ):
            ops.all_gather_linear(x.requires_grad_(), weight.requires_grad_())
        assert saved == [t.untyped_storage().data_ptr() for t in (x, weight)]


class TestRefusals:
    X = torch.zeros(4, 12, 32)
    W = torch.zeros(56, 128)

    @pytest.mark.parametrize("meta", [False, True])
    @pytest.mark.parametrize(
        ("x", "weight", "bias", "message"),
        [
            (torch.zeros(3), W, None, r"x must be \(R, \*b, H\).*got shape \[3\]"),
            (torch.zeros(0, 2, 3), W, None, r"at least one rank, got shape \[0, 2, 3\]"),
            (X, torch.zeros(56, 64), None, r"weight must be .*\(K, 128\).*got shape \[56, 64\]"),
            (X, torch.zeros(128), None, r"weight must be .*got shape \[128\]"),
            (X, W, torch.zeros(12), r"bias must be \(K,\) = \(56,\).*got shape \[12\]"),
            (X, W, torch.zeros(56, 1), r"bias must be .*got shape \[56, 1\]"),
            (X.bfloat16(), W, None, r"weight is .*[Ff]loat.* and x is .*[Bb][Ff]loat16"),
            (X, W, torch.zeros(56).half(), r"bias is .*(Half|float16) and x is .*[Ff]loat"),
            (X.int(), W.int(), None, r"x must be float32, .* got .*[Ii]nt"),
        ],
    )
    def test_names_the_argument_and_what_is_accepted(self, x, weight, bias, message, meta):
        call = [t if t is None or not meta else t.to("meta") for t in (x, weight, bias)]
        with pytest.raises(RuntimeError, match=message):
            ops.all_gather_linear(*call)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.bool])
    def test_other_dtypes(self, dtype):
        with pytest.raises(RuntimeError, match="x must be float32, float64, float16 or bfloat16"):
            ops.all_gather_linear(self.X.to(dtype), self.W.to(dtype))

    def test_two_devices(self):
        with pytest.raises(RuntimeError, match=r"weight is on cpu and x is on meta"):
            ops.all_gather_linear(self.X.to("meta"), self.W)
        with pytest.raises(RuntimeError, match=r"bias is on meta and x is on cpu"):
            ops.all_gather_linear(self.X, self.W, torch.zeros(56, device="meta"))

    @pytest.mark.gpu
    def test_two_devices_with_a_gpu(self):
        with pytest.raises(RuntimeError, match=r"weight is on cpu and x is on cuda:0"):
            ops.all_gather_linear(self.X.cuda(), self.W)

    def test_under_a_transform(self):
        with pytest.raises(RuntimeError, match=r"weight must be .*got shape \[56, 64\]"):
            torch.func.vmap(ops.all_gather_linear, (0, None))(self.X[None], self.W[:, :64])
        with pytest.raises(RuntimeError, match="x must be float32"):
            torch.func.vmap(ops.all_gather_linear, (0, None))(self.X[None].long(), self.W.long())

    def test_sparse(self):
        with pytest.raises(RuntimeError, match="weight must be a dense tensor, got layout Sparse"):
            ops.all_gather_linear(self.X, self.W.to_sparse())

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"R": 0}, "R must be 1 or more, got 0"),
            ({"grad": torch.zeros(())}, r"grad must be \(\*b, K\), got shape \[\]"),
            ({"grad": torch.zeros(12, 56).int()}, "grad must be float32"),
            ({"x": torch.zeros(3, 12, 32)}, r"x must be .* R = 4 .*got shape \[3, 12, 32\]"),
            ({"x": torch.zeros(4, 11, 32)}, r"x must be .*got shape \[4, 11, 32\]"),
            ({"x": torch.zeros(4, 12, 32).half()}, "x is Half and grad is Float"),
            ({"weight": torch.zeros(55, 128)}, r"weight must be .*K = 56 .*got shape \[55, 128\]"),
            ({"weight": torch.zeros(56, 126)}, r"weight must be .*got shape \[56, 126\]"),
            ({"weight": torch.zeros(56, 128).double()}, "weight is Double and grad is Float"),
        ],
    )
    def test_of_the_backward(self, change, message):
        if not build_info().extension:
            pytest.skip("the operator is in the extension")
        call = {"grad": torch.zeros(12, 56), "x": self.X, "weight": self.W, "R": 4} | change
        with pytest.raises(RuntimeError, match=message):
            torch.ops.kernelbench_dist._all_gather_linear_backward(*call.values(), True)
