"""What ONNX Runtime does with memory: its allocator, its arena, loading, and the form of file that makes use of that.

Pure rules, each measured; what differs between versions of the runtime is a row of a table here (`load_rules`).
"""
