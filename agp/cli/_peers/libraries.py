"""The peer of each library, imported when it is asked for."""

from contract import Peer


def opened(library: str) -> type[Peer]:
    """The peer of a library; ImportError where this interpreter has none."""
    if library == "gpytorch":
        from gpytorch_peer import GPyTorchPeer as Found
    elif library == "gpflow":
        from gpflow_peer import GPflowPeer as Found
    elif library == "gpjax":
        from gpjax_peer import GPJaxPeer as Found
    else:  # for tests, and for libraries of others: a module of that name has the class
        from importlib import import_module

        Found = import_module(library).Peer
    return Found
