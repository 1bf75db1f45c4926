// Run a model in ONNX Runtime for Node, or for browsers (WebAssembly), and tell what came of it and what it took.
//
// `node targets_node.mjs PACKAGE MODEL FEEDS.json FOLDER [WAY]` prints one JSON. PACKAGE is the folder of onnxruntime-node
// or onnxruntime-web. FEEDS.json has of each input its type, sizes and a file of bytes. Outputs of the first run go into
// FOLDER, as bytes. WAY is how the outputs of runs are let go: `held` until the next run has ended (when left out),
// `own` buffers that are given to each run, or `swept` by a collection after each (needs --expose-gc).
//
// Of Node the resident memory of the process is told, of WebAssembly the size of its memory, which never shrinks; both
// above that of a session on a model of one op.

import fs from 'node:fs'
import { createRequire } from 'node:module'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const [folder, model, feedsPath, results, way = 'held'] = process.argv.slice(2)
const RUNS = 8
const RELU =
  '08083a330a0c0a0178120179220452656c751201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08080112040a02080142040a00100d'
const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  int64: BigInt64Array,
  int32: Int32Array,
  uint8: Uint8Array,
  int8: Int8Array,
  bool: Uint8Array,
}

const told = JSON.parse(fs.readFileSync(path.join(folder, 'package.json'), 'utf8'))
const isWeb = told.name === 'onnxruntime-web'
const heaps = []

function statusBytes(field) {
  const found = new RegExp(`^${field}:\\s*(\\d+) kB`, 'm').exec(fs.readFileSync('/proc/self/status', 'ascii'))
  return Number(found[1]) * 1024
}

// The most that was held since the last call of `lowered`.
const heldBytes = () =>
  isWeb ? Math.max(0, ...heaps.map((heap) => heap.buffer.byteLength)) : statusBytes('VmHWM')

function lowered() {
  if (!isWeb) {
    fs.writeFileSync('/proc/self/clear_refs', '5')
  }
}

async function runtime() {
  if (!isWeb) {
    return createRequire(path.join(folder, 'package.json'))('./')
  }
  WebAssembly.Memory = new Proxy(WebAssembly.Memory, {
    construct(Memory, words) {
      heaps.push(new Memory(...words))
      return heaps.at(-1)
    },
  })
  const { env, ...ort } = await import(pathToFileURL(path.join(folder, 'dist', 'ort.node.min.mjs')).href)
  env.wasm.numThreads = 1
  env.logLevel = 'fatal'
  return { ...ort, env }
}

// A page has no files: it gives the model as bytes, and the file with its weights beside them, under the name in the model.
function opened(ort, file) {
  if (!isWeb) {
    return ort.InferenceSession.create(file)
  }
  const data = `${path.basename(file)}.data`
  const beside = path.join(path.dirname(file), data)
  const externalData = fs.existsSync(beside) ? [{ path: data, data: new Uint8Array(fs.readFileSync(beside)) }] : []
  return ort.InferenceSession.create(new Uint8Array(fs.readFileSync(file)), { executionProviders: ['wasm'], externalData })
}

function tensorOf(ort, { type, dims, file }) {
  const bytes = new Uint8Array(fs.readFileSync(file))
  return new ort.Tensor(type, new ARRAYS[type](bytes.buffer), dims)
}

const bytesOf = ({ data }) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength)

// New buffers of the sizes of these outputs.
function buffersLike(ort, outputs) {
  const made = Object.entries(outputs).map(([name, { type, data, dims }]) => [
    name,
    new ort.Tensor(type, new data.constructor(data.length), dims),
  ])
  return Object.fromEntries(made)
}

const found = { runtime: told.version, stage: 'load' }
try {
  const ort = await runtime()
  const tiny = path.join(results, 'tiny.onnx')
  fs.writeFileSync(tiny, Buffer.from(RELU, 'hex'))
  const first = await opened(ort, tiny)
  await first.run({ x: new ort.Tensor('float32', new Float32Array(1), [1]) })
  const feeds = JSON.parse(fs.readFileSync(feedsPath, 'utf8'))
  for (const name of Object.keys(feeds)) {
    feeds[name] = tensorOf(ort, feeds[name])
  }
  global.gc?.()
  lowered()
  const before = heldBytes()
  found.before_bytes = isWeb ? before : 0
  const session = await opened(ort, model)
  found.load_bytes = heldBytes() - (isWeb ? 0 : before)
  found.stage = 'run'
  found.run_bytes = []
  let outputs
  let buffers
  for (let run = 0; run < RUNS; run += 1) {
    lowered()
    // eslint-disable-next-line no-unused-vars -- held until this run has ended, as programs do
    outputs = await (buffers ? session.run(feeds, buffers) : session.run(feeds))
    found.run_bytes.push(heldBytes() - (isWeb ? 0 : before))
    if (run === 0) {
      found.outputs = session.outputNames.map((name, number) => {
        const file = path.join(results, `${number}.bin`)
        fs.writeFileSync(file, bytesOf(outputs[name]))
        return { name, type: outputs[name].type, dims: [...outputs[name].dims], file }
      })
      if (way === 'own') {
        buffers = buffersLike(ort, outputs)
      }
    }
    if (way === 'swept') {
      global.gc()
    }
  }
  found.stage = 'done'
} catch (error) {
  found.message = String(error?.message ?? error).slice(0, 2000)
}
process.stdout.write(`${JSON.stringify(found)}\n`, () => process.exit(0))
