"""all_gather_linear inside torch: opcheck, compile, torch.func, autocast, meta tensors, plan."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import linear_cases
import pytest
import torch
from linear_cases import reference
from torch import nn

from kernelbench_dist import build_info, ops
from kernelbench_dist.nn import AllGatherLinear


def random_call(device="cpu", dtype=torch.float32, R=4, B=12, H=32, K=56, seed=0):
    return linear_cases.random_call(R, B, H, K, dtype, device, seed)


def loss(*call):
    return ops.all_gather_linear(*call).square().sum()


def reference_loss(*call):
    return reference(*call).square().sum()


class TestTorchLibrary:
    @pytest.mark.parametrize("requires_grad", [False, True])
    @pytest.mark.parametrize("bias", [False, True])
    def test_opcheck(self, device, requires_grad, bias):
        call = [t.requires_grad_(requires_grad) for t in random_call(device)]
        call = call if bias else call[:2]
        torch.library.opcheck(torch.ops.kernelbench_dist.all_gather_linear.default, call)

    @pytest.mark.parametrize(
        "wanted", [(True, True, True), (True, False, False), (False, True, True)]
    )
    def test_opcheck_backward(self, device, wanted):
        if not build_info().extension:
            pytest.skip("the operator is in the extension")
        x, weight, _ = random_call(device)
        call = (
            torch.randn(12, 56, device=device),
            x if wanted[1] else None,
            weight if wanted[0] else None,
            4,
            wanted[2],
        )
        torch.library.opcheck(torch.ops.kernelbench_dist._all_gather_linear_backward.default, call)

    def test_meta(self):
        x, weight, bias = (t.to("meta") for t in random_call(B=24, K=112))
        out = ops.all_gather_linear(x, weight, bias)
        assert (out.shape, out.device.type, out.dtype) == ((24, 112), "meta", torch.float32)

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compile_without_a_graph_break(self, device, dynamic):
        compiled = torch.compile(
            lambda *call: ops.all_gather_linear(*call).relu(),
            fullgraph=True,
            backend="aot_eager",
            dynamic=dynamic,
        )
        for B in (3, 5, 8):
            call = [t.requires_grad_() for t in random_call(device, B=B)]
            out = compiled(*call)
            torch.testing.assert_close(out, reference(*call).relu())
            ours = torch.autograd.grad(out.sum(), call)
            theirs = torch.autograd.grad(reference(*call).relu().sum(), call)
            torch.testing.assert_close(ours, theirs)

    @pytest.mark.slow
    def test_compile_with_inductor(self, device):
        call = [t.requires_grad_() for t in random_call(device, torch.float64)]
        out = torch.compile(loss, fullgraph=True)(*call)
        torch.testing.assert_close(out, reference_loss(*call))
        torch.testing.assert_close(
            torch.autograd.grad(out, call), torch.autograd.grad(reference_loss(*call), call)
        )

    def test_export(self):
        layer = AllGatherLinear(4, 32, 56)
        rows = torch.export.Dim("rows")
        exported = torch.export.export(
            layer, (torch.randn(4, 12, 32),), dynamic_shapes=({1: rows},), strict=False
        )
        x = torch.randn(4, 7, 32)
        torch.testing.assert_close(exported.module()(x), layer(x))


class TestTransforms:
    def test_grad(self, device):
        call = random_call(device, torch.float64)
        ours = torch.func.grad(loss, (0, 1, 2))(*call)
        torch.testing.assert_close(ours, torch.func.grad(reference_loss, (0, 1, 2))(*call))

    def test_jvp(self, device):
        call = tuple(random_call(device, torch.float64))
        tangents = tuple(random_call(device, torch.float64, seed=1))
        torch.testing.assert_close(
            torch.func.jvp(ops.all_gather_linear, call, tangents),
            torch.func.jvp(reference, call, tangents),
        )

    @pytest.mark.parametrize("in_dims", [(0, None, None), (None, 0, None), (0, 0, 0), (1, None, 0)])
    def test_vmap(self, device, in_dims):
        call = random_call(device, torch.float64)
        many = [
            t if dim is None else torch.stack([t, 2 * t, t - 1], dim)
            for t, dim in zip(call, in_dims, strict=True)
        ]
        for transform in (torch.func.vmap, lambda f, d: torch.func.vmap(torch.func.grad(f), d)):
            ours, theirs = (
                (ops.all_gather_linear, reference)
                if transform is torch.func.vmap
                else (loss, reference_loss)
            )
            torch.testing.assert_close(
                transform(ours, in_dims)(*many), transform(theirs, in_dims)(*many)
            )

    def test_grad_of_vmap_and_hessian(self, device):
        x, weight, bias = random_call(device, torch.float64, R=2, B=3, H=4, K=5)
        xs = torch.stack([x, x * 2])

        def total(fn):
            return lambda xs: torch.func.vmap(fn, (0, None, None))(xs, weight, bias).sum()

        torch.testing.assert_close(
            torch.func.grad(total(loss))(xs), torch.func.grad(total(reference_loss))(xs)
        )
        torch.testing.assert_close(
            torch.func.hessian(loss, 1)(x, weight, bias),
            torch.func.hessian(reference_loss, 1)(x, weight, bias),
        )

    def test_forward_mode_over_a_backward_that_was_recorded_before(self, device):
        call = [t.requires_grad_() for t in random_call(device, torch.float64, R=2, B=3, H=4, K=5)]
        upstream, tangent = torch.ones(3, 5).to(call[0]), torch.randn(3, 5).to(call[0])
        found = []
        for fn in (ops.all_gather_linear, reference):
            out = fn(*call)
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(upstream, tangent)
                grads = torch.autograd.grad(out, call, dual)
                found.append([torch.autograd.forward_ad.unpack_dual(g).tangent for g in grads])
        torch.testing.assert_close(*found)

    def test_still_the_operator_after_a_transform(self, device):
        call = [t.requires_grad_() for t in random_call(device)]
        torch.func.grad(loss)(*(t.detach() for t in call))
        assert "AllGatherLinear" in ops.all_gather_linear(*call).grad_fn.name()


class TestAutocast:
    @pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
    def test_as_linear(self, device, low):
        call = [t.requires_grad_() for t in random_call(device)]
        with torch.autocast(device, dtype=low):
            out, expected = ops.all_gather_linear(*call), reference(*call)
        assert out.dtype == expected.dtype == low
        tolerance = {"rtol": 0.02, "atol": 0.2}
        torch.testing.assert_close(out, expected, **tolerance)
        ours = torch.autograd.grad(out.float().sum(), call)
        assert [g.dtype for g in ours] == [torch.float32] * 3
        theirs = torch.autograd.grad(expected.float().sum(), call)
        torch.testing.assert_close(ours, theirs, **tolerance)

    def test_float64_is_left_alone(self, device):
        with torch.autocast(device, dtype=torch.bfloat16):
            assert ops.all_gather_linear(*random_call(device, torch.float64)).dtype == torch.float64

    def test_inference_mode(self, device):
        call = random_call(device)
        with torch.inference_mode():
            torch.testing.assert_close(ops.all_gather_linear(*call), reference(*call))


class TestPlan:
    def test_is_frozen_and_says_why(self):
        plan = ops.plan("all_gather_linear", *random_call(), device="cpu")
        assert plan.kernel in ("fallback", "cpu_by_rank", "cpu_upcast")
        assert plan.reason
        assert plan.launches is None
        assert plan.tiles is None
        assert plan.split == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            plan.kernel = "other"

    def test_refuses_what_the_operator_refuses(self):
        x, weight, _ = random_call()
        with pytest.raises(RuntimeError, match="weight must be"):
            ops.plan("all_gather_linear", x, weight[:, :5])
        with pytest.raises(
            ValueError, match=r"operator 'gather' is not one of \['all_gather_linear'\]"
        ):
            ops.plan("gather", x)

    @pytest.mark.skipif(not build_info().cuda, reason="this build has no CUDA part")
    @pytest.mark.parametrize(
        ("size", "dtype", "kernel", "tiles", "split"),
        [
            ((4, 12, 32, 56), torch.float32, "dot", (1, 1), 32),
            ((4, 12, 32, 56), torch.bfloat16, "dot", (1, 1), 32),
            ((4, 64, 64, 256), torch.float32, "dot", (2, 2), 8),
            ((4, 256, 128, 512), torch.float32, "dot", (4, 4), 8),
            ((8, 16, 1024, 1024), torch.float32, "dot", (4, 4), 32),
            ((4, 256, 128, 512), torch.bfloat16, "fallback", None, 1),
            ((8, 512, 128, 1024), torch.float32, "fallback", None, 1),
            ((8, 8192, 1024, 8192), torch.float16, "fallback", None, 1),
            ((8, 1, 1024, 8192), torch.bfloat16, "dot", (2, 2), 32),
            ((8, 1, 512, 512), torch.float64, "fallback", None, 1),
        ],
    )
    def test_of_cuda_from_the_shape_alone(self, size, dtype, kernel, tiles, split):
        R, B, H, K = size
        x = torch.empty(R, B, H, dtype=dtype, device="meta")
        weight = torch.empty(K, R * H, dtype=dtype, device="meta")
        plan = ops.plan("all_gather_linear", x, weight, device="cuda")
        assert (plan.kernel, plan.tiles, plan.split) == (kernel, tiles, split), plan
        assert plan.launches == (1 if kernel == "dot" else None)

    @pytest.mark.skipif(not build_info().cuda, reason="this build has no CUDA part")
    def test_of_cuda_when_tf32_is_allowed(self):
        x, weight = torch.empty(4, 256, 128, device="meta"), torch.empty(512, 512, device="meta")
        before = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        try:
            assert ops.plan("all_gather_linear", x, weight, device="cuda").kernel == "fallback"
        finally:
            torch.backends.cuda.matmul.fp32_precision = before
        assert ops.plan("all_gather_linear", x, weight, device="cuda").kernel == "dot"

    @pytest.mark.skipif(not build_info().cuda, reason="this build has no CUDA part")
    @pytest.mark.parametrize(
        "call",
        [
            ((4, 1, 2**30), (4096, 2**32)),  # strides of zero: small offsets, huge sizes
            ((1, 1, 2**32), (4096, 2**32)),
            ((2**32, 1, 8), (4096, 2**35)),
            ((1, 2**31, 8), (1, 8)),
        ],
    )
    def test_of_cuda_for_sizes_beyond_32_bits(self, call):
        x, weight = (torch.empty((1,) * len(s), device="meta").expand(s) for s in call)
        plan = ops.plan("all_gather_linear", x, weight, device="cuda")
        assert plan.reason == "an offset is beyond our kernels' 32 bits"

    @pytest.mark.skipif(not build_info().cuda, reason="this build has no CUDA part")
    def test_of_cuda_for_a_bias_that_is_stretched_over_memory(self):
        bias = torch.empty(56, 2**26, device="meta")[:, 0]
        x, weight = torch.empty(4, 12, 32, device="meta"), torch.empty(56, 128, device="meta")
        assert ops.plan("all_gather_linear", x, weight, bias, device="cuda").kernel == "fallback"

    @pytest.mark.skipif(not build_info().cuda, reason="this build has no CUDA part")
    def test_of_cuda_for_rows_without_one_stride(self):
        x = torch.empty(2, 6, 4, 8, device="meta")[:, ::2, 1:]
        weight = torch.empty(5, 16, device="meta")
        plan = ops.plan("all_gather_linear", x, weight, device="cuda")
        assert (plan.kernel, plan.reason) == (
            "fallback",
            "x's batch dimensions have no single stride",
        )


class TestModule:
    def test_state_dict_to_and_from_a_linear(self):
        ours, dense = AllGatherLinear(4, 32, 56), nn.Linear(128, 56)
        ours.load_state_dict(dense.state_dict())
        x = torch.randn(4, 12, 32)
        torch.testing.assert_close(ours(x), dense(torch.cat(x.unbind(0), -1)))
        dense.load_state_dict(AllGatherLinear(4, 32, 56).state_dict())
        assert isinstance(ours, nn.Linear)

    def test_starts_as_a_linear_does(self):
        torch.manual_seed(3)
        ours = AllGatherLinear(4, 32, 56)
        torch.manual_seed(3)
        assert torch.equal(ours.weight, nn.Linear(128, 56).weight)

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_deepcopy_and_pickle(self, duplicate):
        layer = AllGatherLinear(2, 3, 5)
        twin, x = duplicate(layer), torch.randn(2, 4, 3)
        assert torch.equal(twin(x), layer(x))
        with torch.no_grad():
            layer.weight.zero_()
        assert not torch.equal(twin(x), layer(x))

    def test_repr(self):
        assert repr(AllGatherLinear(4, 32, 56, bias=False)) == (
            "AllGatherLinear(world_size=4, in_features_per_rank=32, out_features=56, bias=False)"
        )

    @pytest.mark.parametrize("shape", [(8, 12, 16), (2, 12, 64), (128,), (4, 12, 31), (12, 4, 32)])
    def test_another_split_is_an_error(self, shape):
        with pytest.raises(ValueError, match=r"R=4 and H=32, got shape \("):
            AllGatherLinear(4, 32, 56)(torch.zeros(shape))

    @pytest.mark.parametrize("sizes", [(0, 32, 56), (4, 2.0, 56), (4, 32, -1), (True, 32, 56)])
    def test_sizes_that_are_not_positive_integers(self, sizes):
        with pytest.raises(ValueError, match="must be an int of 1 or more, got"):
            AllGatherLinear(*sizes)

    def test_what_is_no_tensor(self):
        with pytest.raises(TypeError, match=r"x must be a tensor \(R, \*b, H\), got list"):
            AllGatherLinear(2, 3, 5)([torch.zeros(4, 3)] * 2)

    def test_dtype_and_device(self, device):
        layer = AllGatherLinear(2, 3, 5, device=device, dtype=torch.bfloat16)
        assert layer(torch.ones(2, 4, 3).to(layer.weight)).dtype == torch.bfloat16
