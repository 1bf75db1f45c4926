"""Train on handwritten digits in less memory than the plain step needs: python examples/finetune.py [FOLDER]."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime as ort
from sklearn.datasets import load_digits

import remat_cli as remat

model, folder = Path(__file__).with_name("digits.onnx"), Path(sys.argv[1] if len(sys.argv) > 1 else ".")
words = {"loss": "cross-entropy", "optimizer": "adam", "batch": 256, "budget": "60%", "force": True}
words["verify"] = "thorough"  # finds the smallest cap
made = remat.train(model, **words, output=folder / "step.onnx", on_progress=lambda event: print(event, file=sys.stderr))
plan = remat.read_plan(made.compiled.plan)
images, labels = load_digits(return_X_y=True)

# A hard limit on what sessions that opt in may hold: a third more than the planned step runs in, and still too little
# for the plain one.
cap = int(1.3 * plan.verification.smallest_cap_bytes)
memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
limits = {"max_mem": cap, "initial_chunk_size_bytes": cap, "max_dead_bytes_per_chunk": 256}
ort.create_and_register_allocator(memory, ort.OrtArenaCfg(limits))


def train(step, capped):
    options = ort.SessionOptions()
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.use_env_allocators", str(int(capped)))
    session = ort.InferenceSession(folder / step, options, providers=["CPUExecutionProvider"])
    names, state, losses = [o.name for o in session.get_outputs()], dict(np.load(folder / "step.state.npz")), []
    for batch in np.random.default_rng(0).integers(0, len(images), (60, 256)):
        x = (images[batch].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
        feeds = {"x": x, "target": labels[batch], "learning_rate": np.array(0.004, np.float32)}
        results = dict(zip(names, session.run(None, feeds | state), strict=True))
        for name, array in state.items():  # new arrays would be there beside these
            array[...] = results[f"{name}.next"]
        losses.append(results["loss"].item())
        results.clear()  # gives the runtime its memory back before the next step
    return losses


try:
    train("step.onnx", capped=True)
except Exception as error:
    print(f"the plain step in {cap:,} bytes: {str(error)[-66:].strip()}")
planned, plain = train("step.remat.onnx", capped=True), train("step.onnx", capped=False)
print(f"losses equal: {planned == plain}, from {plain[0]:.3f} to {plain[-1]:.3f}")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
left.plot(plain, label="plain")
left.plot(planned, "--", label="planned")
for name, label in (("baseline_memory_bytes", "plain"), ("memory_bytes", "planned")):
    held = np.array(getattr(plan.promise, name)) / 2**20
    right.plot(np.linspace(0, 1, len(held)), held, label=label)
left.set(xlabel="training step", ylabel="loss")
right.set(xlabel="share of one step's ops", ylabel="MiB")
right.legend()
figure.savefig(folder / "finetune.svg")
