"""A program written for PyTorch: two spirals, told apart by a small network. It knows nothing of weft."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    SummaryWriter = None


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))

    @torch.jit.ignore
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    turn = torch.linspace(0.5, 2.0, 64)
    arm = torch.stack([turn * torch.cos(3 * turn), turn * torch.sin(3 * turn)], dim=1)
    data = TensorDataset(torch.cat([arm, -arm]), (torch.arange(128) >= 64).long())
    model = Net(16).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(args.epochs):
        for x, y in DataLoader(data, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            with torch.profiler.record_function("step"):
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
    print(f"{model.parameter_count()} parameters, {torch.float32}, loss below 0.7: {loss.item() < 0.7}")


if __name__ == "__main__":
    main()
