"""Replaces sgl_kernel, which PyPI does not have for the CPU. On the CPU, SGLang imports names of sgl_kernel but never calls them.

Every name and every submodule can be imported. A function raises NotImplementedError when it is called.
"""
import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.4.10"
__path__ = []


class _Names:
    """A value whose attributes are their own names, such as scalar_types."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def _attribute(module, name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "scalar_types":
        return _Names()

    def function(*args, **kwargs):
        raise NotImplementedError(f"{module}.{name} (stub)")

    function.__name__ = name
    return function


class _Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        return _attribute(self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder())


def __getattr__(name):
    return _attribute("sgl_kernel", name)
