import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.stack([torch.softmax(row, -1) for row in x])
