"""One error of CUDA or of torch, as $HOW says."""

import os

import torch

how = os.environ["HOW"]
if how == "memory":
    held = [torch.empty(1 << 34, dtype=torch.uint8, device="cuda") for _ in range(1000)]
if how == "assert":
    torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].item()
if how == "access":
    read = torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x + *(T*)8; }")
    read(torch.ones(4, device="cuda")).sum().item()
if how == "ordinal":
    torch.ones(1, device="cuda:99")
if how == "fork":
    torch.ones(1, device="cuda")
    torch.multiprocessing.start_processes(lambda number: torch.ones(number + 1, device="cuda"), start_method="fork")
