"""Reference kernels in plain PyTorch for the operators that only torch_npu has."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):  # importing a module registers its kernels
    import_module(f"{__name__}.{_module.name}")
