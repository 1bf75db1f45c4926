// Run a model in ONNX Runtime for Node, or for browsers (WebAssembly), and tell what came of it and what it took.
//
// `node --expose-gc targets_node.mjs PACKAGE MODEL FEEDS.json FOLDER` prints one JSON. PACKAGE is the folder of
// onnxruntime-node or onnxruntime-web. FEEDS.json has of each input its type, sizes and a file of bytes. Outputs of the
// last run go into FOLDER, as bytes.
//
// `collected_bytes` is the most in any of the first runs, with a collection after each; `late_bytes` the most in those
// that follow without one. Of Node it is resident memory above that of a session on a model of one op; of WebAssembly
// the size of its memory, which no collection changes.

import fs from 'node:fs'
import { createRequire } from 'node:module'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

import { ARRAYS, mostBytes, watchedHeaps } from './targets_shared.mjs'

const [folder, model, feedsPath, results] = process.argv.slice(2)
const COLLECTED_RUNS = 4
const LATE_RUNS = 20
const RELU =
  '08083a330a0c0a0178120179220452656c751201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08080112040a02080142040a00100d'

const told = JSON.parse(fs.readFileSync(path.join(folder, 'package.json'), 'utf8'))
const isWeb = told.name === 'onnxruntime-web'
const heaps = isWeb ? watchedHeaps() : []

function statusBytes(field) {
  const found = new RegExp(`^${field}:\\s*(\\d+) kB`, 'm').exec(fs.readFileSync('/proc/self/status', 'ascii'))
  return Number(found[1]) * 1024
}

// The most that was held since the last call of `lowered`.
const heldBytes = () => (isWeb ? mostBytes(heaps) : statusBytes('VmHWM'))

function lowered() {
  if (!isWeb) {
    fs.writeFileSync('/proc/self/clear_refs', '5')
  }
}

async function runtime() {
  if (!isWeb) {
    return createRequire(path.join(folder, 'package.json'))('./')
  }
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
  global.gc()
  lowered()
  const before = isWeb ? 0 : heldBytes()
  const session = await opened(ort, model)
  found.stage = 'run'
  let outputs
  const most = async (runs, collects) => {
    let bytes = heldBytes() - before
    for (let run = 0; run < runs; run += 1) {
      lowered()
      outputs = await session.run(feeds) // those of the run before are held until this one has ended
      bytes = Math.max(bytes, heldBytes() - before)
      if (collects) {
        global.gc()
      }
    }
    return bytes
  }
  found.collected_bytes = await most(COLLECTED_RUNS, true)
  found.late_bytes = isWeb ? null : await most(LATE_RUNS, false)
  found.outputs = session.outputNames.map((name, number) => {
    const file = path.join(results, `${number}.bin`)
    fs.writeFileSync(file, bytesOf(outputs[name]))
    return { name, type: outputs[name].type, dims: [...outputs[name].dims], file }
  })
  found.stage = 'done'
} catch (error) {
  found.message = String(error?.message ?? error).slice(0, 2000)
}
process.stdout.write(`${JSON.stringify(found)}\n`, () => process.exit(0))
