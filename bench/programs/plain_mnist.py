"""MNIST with DistributedDataParallel as the tutorials write it: torchvision transforms, DataLoader, DistributedSampler.

The network, optimizer, learning rate and batch are those of jobs/mnist.py.
"""

import argparse

import torch
import torch.distributed as dist
from stamp import stamp
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms
from turns import Turns


class Net(nn.Module):
    """The network of PyTorch's MNIST example."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(self.dropout2(x))


parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--global-batch", type=int, default=64)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--workers", type=int, default=0)
options = parser.parse_args()

stamp("started")
dist.init_process_group("gloo")
torch.manual_seed(0)
transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
train = datasets.MNIST(options.data, train=True, transform=transform)
sampler = DistributedSampler(train)
loader = DataLoader(
    train,
    batch_size=options.global_batch // dist.get_world_size(),
    sampler=sampler,
    num_workers=options.workers,
    persistent_workers=options.workers > 0,
)
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

step, epoch, turns = 0, 0, Turns()
while step < options.steps:
    sampler.set_epoch(epoch)
    epoch += 1
    for images, targets in loader:
        optimizer.zero_grad()
        outputs = model(images)
        turns()
        loss = F.cross_entropy(outputs, targets)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == options.steps:
            break
dist.barrier()
dist.destroy_process_group()
