"""Train a small net on handwritten digits in less memory than its plain training step needs, with the same losses.

Needs: pip install 'remat_cli[cpu]' scikit-learn matplotlib. Run: python examples/finetune.py [FOLDER]
"""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime as ort
from sklearn.datasets import load_digits

BATCH, STEPS = 256, 60
model, folder = Path(__file__).with_name("digits.onnx"), Path(sys.argv[1] if len(sys.argv) > 1 else ".")
flags = f"--loss cross-entropy --optimizer momentum --batch {BATCH} --budget 60% --force".split()
subprocess.run([sys.executable, "-m", "remat_cli", "train", model, *flags, "-o", folder / "step.onnx"], check=True)
plan = json.loads((folder / "step.plan.json").read_text())
cap = int(1.3 * plan["verification"]["smallest_cap_bytes"])  # some room for what the last step left behind
memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"max_mem": cap, "initial_chunk_size_bytes": cap}))
digits = load_digits()
images, labels = (digits.images[:, None] / 16).astype(np.float32), digits.target.astype(np.int64)


def train(step: str, capped: bool) -> list[float]:
    """Losses of some steps; `capped` sessions may not hold more than the cap."""
    options = ort.SessionOptions()
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.use_env_allocators", str(int(capped)))
    session = ort.InferenceSession(folder / step, options, providers=["CPUExecutionProvider"])
    names, state, losses = [o.name for o in session.get_outputs()], dict(np.load(folder / "step.state.npz")), []
    for batch in np.random.default_rng(0).integers(0, len(images), (STEPS, BATCH)):
        feeds = {"x": images[batch], "target": labels[batch], "learning_rate": np.array(0.05, np.float32)}
        results = dict(zip(names, session.run(None, feeds | state), strict=True))
        state = {name.removesuffix(".next"): results[name] for name in names if name.endswith(".next")}
        losses.append(float(results["loss"]))
    return losses


planned, plain = train("step.remat.onnx", capped=True), train("step.onnx", capped=False)
try:
    train("step.onnx", capped=True)
except Exception as error:
    print("the plain step under the cap of", cap, "bytes:", str(error).split(".")[0][:90])
print(f"losses equal: {planned == plain}, from {plain[0]:.3f} to {plain[-1]:.3f}")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
left.plot(plain, label="plain")
left.plot(planned, "--", label="planned")
for name in ("baseline_memory_bytes", "memory_bytes"):
    right.plot(np.linspace(0, 1, len(plan["promise"][name])), np.array(plan["promise"][name]) / 2**20, label=name)
left.set(xlabel="step", ylabel="loss")
right.set(xlabel="share of the steps of one run", ylabel="MiB")
left.legend()
right.legend()
figure.savefig(folder / "finetune.svg")
