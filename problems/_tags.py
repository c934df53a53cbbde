"""What a problem's program calls of torch.distributed: its tags, read from the file."""

from __future__ import annotations

import ast

# The names that one operation has in torch.distributed, and P2P as one.
_TAGS = {
    "all_gather_coalesced": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "all_to_all_single": "all_to_all",
    "batch_isend_irecv": "send_recv",
    "irecv": "send_recv",
    "isend": "send_recv",
    "recv": "send_recv",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "send": "send_recv",
}
COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send_recv",
)


def tags_of(source: str) -> tuple[str, ...]:
    """The collectives that a file names as dist.NAME, in alphabetical order.

    >>> tags_of("dist.all_to_all_single(y, x)\\ndist.all_reduce(y)\\ndist.get_rank()")
    ('all_reduce', 'all_to_all')
    """
    names = {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "dist"
    }
    return tuple(sorted({_TAGS.get(name, name) for name in names} & set(COLLECTIVES)))
