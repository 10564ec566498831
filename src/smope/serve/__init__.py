"""`smope serve`: the classifier over HTTP, and a page to teach it with one's own hands.

    upload --> gate (host, origin, token, limits) --> predict: batching --> the last good classifier --> answer
                                                  --> learn:   learner --> teacher process --> shop.smope --> the next last good one

**Why learning is a process of its own, and no thread.** A thread that trains shares the interpreter and torch's thread pool with the
predictions. A process that is nicer by ten gives way to them; when it is killed, runs out of memory or meets a bug, nothing that serves
is touched; and its memory is the system's again when it ends. It is given nothing but the adapter file, as `smope learn` is: it locks it,
loads it, learns, replaces it by rename, and the server loads what then lies there. The price is a second copy of the backbone in
memory while it learns, and the seconds in which it starts. `tools/load_test.py` measures what predictions suffer meanwhile.

Nothing here imports torch until the model is loaded, in the background: the page is there before it.
"""

from smope.serve.start import Where, serve

__all__ = ["Where", "serve"]
