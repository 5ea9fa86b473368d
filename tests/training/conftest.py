import pytest
import torch
from learnable import lists


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the networks here are tiny
    yield
    torch.set_num_threads(before)


@pytest.fixture
def train():
    return lists(40, 0)


@pytest.fixture
def vali():
    return lists(20, 1)
