"""Run the `code.py` of given folders and save the features that it computes from `images.npy`.

Run with `-I`, which ignores PYTHONPATH. Its argument names the modules, separated by commas, that must not be
imported, as if they were not installed. Each line of standard input is a JSON list of folders, and is answered
with a line on standard output.
"""

import json
import os
import runpy
import sys

absent = sys.argv[1].split(",")
for name in absent:
    sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ImportError

import numpy  # noqa: E402

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the code prints is no answer

for line in sys.stdin:
    for folder in json.loads(line):
        os.chdir(folder)
        images = numpy.load("images.npy")
        variables = runpy.run_path("code.py", {"images": images})
        if "features" not in variables:
            import torch

            torch.set_num_threads(1)
            with torch.no_grad():
                variables["features"] = variables["model"](torch.from_numpy(images)).numpy()
        numpy.save("features.npy", variables["features"])
    loaded = [
        name for name, module in sys.modules.items() if module and name.split(".")[0] in absent
    ]
    assert not loaded, loaded
    print("done", file=answers, flush=True)
