// Run one program of the field bench that is a package of Node, and see what its process takes.
//
// `node drive.mjs NODE_MODULES NAME USE MODEL PICTURES RESULT [FEEDS]` does what drive.py does for Python: it counts
// from the first session on, and each session is the runtime's own with the options of the program; in FEEDS it keeps
// what the model is fed. PICTURES is a folder of PNG files made by inputs.py.

import { createHash } from 'node:crypto'
import fs from 'node:fs'
import { createRequire } from 'node:module'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const [modules, name, use, model, pictures, result, keeps] = process.argv.slice(2)
const REPEATS = 2
const PAGES = ['page-736x960', 'page-640x480', 'page-320x320', 'page-736x960']
const PHOTO = 'photo-800x600'

const statusBytes = (field) =>
  Number(new RegExp(`^${field}:\\s*(\\d+) kB`, 'm').exec(fs.readFileSync('/proc/self/status', 'ascii'))[1]) * 1024

const asked = []
const kept = new Set()
let beforeBytes = 0

// Keep what the model is fed, once for all feeds of the same sizes: NumPy's files, whose header ends at a line of 64.
function keep(feeds, shapes) {
  if (kept.has(shapes)) {
    return
  }
  const folder = path.join(keeps, String(kept.size))
  kept.add(shapes)
  fs.mkdirSync(folder, { recursive: true })
  for (const [key, { data, dims, type }] of Object.entries(feeds)) {
    const dtype = { float32: '<f4', int64: '<i8', int32: '<i4', uint8: '|u1' }[type]
    const said = `{'descr': '${dtype}', 'fortran_order': False, 'shape': (${[...dims].map((size) => `${size}, `).join('')}), }`
    const header = Buffer.from(`\x93NUMPY\x01\x00  ${said.padEnd(Math.ceil((said.length + 11) / 64) * 64 - 11)}\n`, 'latin1')
    header.writeUInt16LE(header.length - 10, 8)
    const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength)
    fs.writeFileSync(path.join(folder, `${encodeURIComponent(key)}.npy`), Buffer.concat([header, bytes]))
  }
}

// Replace what makes sessions in the runtime that a package finds, before the package takes it from there.
function watch(packageName) {
  const find = createRequire(path.join(modules, packageName, 'package.json'))
  const { InferenceSession } = find('onnxruntime-node')
  const create = InferenceSession.create.bind(InferenceSession)
  InferenceSession.create = async (given, ...rest) => {
    if (asked.length === 0) {
      fs.writeFileSync('/proc/self/clear_refs', '5')
      beforeBytes = statusBytes('VmRSS')
    }
    const options = rest.find((each) => each && typeof each === 'object' && !ArrayBuffer.isView(each)) ?? {}
    const isPath = typeof given === 'string'
    const note = {
      is_model: !isPath || fs.realpathSync(given) === fs.realpathSync(model),
      given: isPath ? 'path' : 'bytes',
      arena: options.enableCpuMemArena ?? true,
      pattern: options.enableMemPattern ?? true,
      mode: options.executionMode ?? 'sequential',
      level: options.graphOptimizationLevel ?? 'all',
      intra_op_threads: options.intraOpNumThreads ?? 0,
      shapes: [],
      run_ms: [],
    }
    asked.push(note)
    const session = await create(given, ...rest)
    const run = session.run.bind(session)
    session.run = async (feeds, ...others) => {
      const started = performance.now()
      const outputs = await run(feeds, ...others)
      note.run_ms.push(performance.now() - started)
      note.shapes.push(Object.fromEntries(Object.entries(feeds).map(([key, tensor]) => [key, [...tensor.dims]])))
      if (keeps && note.is_model) {
        keep(feeds, JSON.stringify(note.shapes.at(-1)))
      }
      return outputs
    }
    return session
  }
  return find('onnxruntime-node/package.json').version
}

const imported = async (packageName, file) => import(pathToFileURL(path.join(modules, packageName, file)).href)

async function gutenye() {
  const runtime = watch('@gutenye/ocr-node')
  const { default: Ocr } = await imported('@gutenye/ocr-node', 'build/index.js')
  const ocr = await Ocr.create()
  return [runtime, (picture) => ocr.detect(path.join(pictures, `${picture}.png`)), PAGES]
}

async function imgly(size) {
  const runtime = watch('@imgly/background-removal-node')
  const { removeBackground } = await imported('@imgly/background-removal-node', 'dist/index.mjs')
  const cut = async (picture) => {
    const url = pathToFileURL(path.join(pictures, `${picture}.png`)).href
    const made = await removeBackground(url, { model: size, output: { format: 'image/x-rgba8' } })
    return createHash('sha256').update(Buffer.from(await made.arrayBuffer())).digest('hex')
  }
  return [runtime, cut, [PHOTO]]
}

const PROGRAMS = {
  'gutenye-det': gutenye,
  'gutenye-rec': gutenye,
  'imgly-small': () => imgly('small'),
  'imgly-medium': () => imgly('medium'),
}

const [runtime, call, given] = await PROGRAMS[name]()
const answers = []
const seconds = []
for (const each of use === 'many' ? given : Array(REPEATS).fill(given[0])) {
  const started = performance.now()
  answers.push(await call(each))
  seconds.push((performance.now() - started) / 1000)
}
const peakBytes = statusBytes('VmHWM')
const told = JSON.stringify(answers)
fs.writeFileSync(
  result,
  JSON.stringify({
    answer: createHash('sha256').update(told).digest('hex'),
    shown: told.slice(0, 200),
    before_bytes: beforeBytes,
    peak_bytes: peakBytes,
    end_bytes: statusBytes('VmRSS'),
    call_seconds: seconds,
    runtime,
    sessions: asked,
  }),
)
