// What a run in Node and one on a page have in common: arrays by the type of a tensor, and memories of WebAssembly.

export const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  int64: BigInt64Array,
  int32: Int32Array,
  uint8: Uint8Array,
  int8: Int8Array,
  bool: Uint8Array,
}

// From now on every memory that is made; the size of each, which never shrinks, is what a model took.
export function watchedHeaps() {
  const heaps = []
  WebAssembly.Memory = new Proxy(WebAssembly.Memory, {
    construct(Memory, words) {
      heaps.push(new Memory(...words))
      return heaps.at(-1)
    },
  })
  return heaps
}

export const mostBytes = (heaps) => Math.max(0, ...heaps.map((heap) => heap.buffer.byteLength))
