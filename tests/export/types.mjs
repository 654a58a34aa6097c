// Judges exports by the types that KubeVirt publishes for its API: tsc finds unknown and misplaced fields and wrong types,
// and the library's own reader and writer let nothing vanish.
//   types.mjs OUT     reads OUT/*.kubevirt.json, and runs tsc in OUT
import { execFileSync } from 'node:child_process';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createRequire } from 'node:module';
import { isDeepStrictEqual } from 'node:util';

const out = process.argv[2];
const require = createRequire(join(out, 'package.json'));
const api = require('@kubevirt-ui-ext/kubevirt-api/kubevirt');
const types = { virtual_machine: 'V1VirtualMachine', cluster: 'V1KubeVirt' };
const fail = (text) => { console.error(`types: ${text}`); process.exit(1); };

// The library calls a field that its generator has a word for otherwise; its writer gives the API's name back.
const literal = (value) => JSON.stringify(value).replaceAll('"configuration":', '"_configuration":');

// The errors of tsc for objects of these types.
function judge(name, objects) {
  const lines = objects.map(([type, value], at) => `const object${at}: ${type} = ${literal(value)};\nvoid object${at};\n`);
  const used = [...new Set(objects.map(([type]) => type))].join(', ');
  const file = join(out, `${name}.ts`);
  writeFileSync(file, `import type { ${used} } from '@kubevirt-ui-ext/kubevirt-api/kubevirt';\n${lines.join('')}`);
  const args = [join(out, 'node_modules/typescript/bin/tsc'), '--noEmit', '--strict', '--skipLibCheck',
    '--moduleResolution', 'bundler', '--module', 'esnext', '--target', 'es2022', file];
  try {
    execFileSync(process.execPath, args, { cwd: out, encoding: 'utf8' });
    return '';
  } catch (error) {
    return error.stdout || String(error);
  }
}

const files = readdirSync(out).filter((name) => name.endsWith('.kubevirt.json')).sort();
if (files.length < 5) fail(`only ${files.length} exports`);
const objects = [];
for (const file of files) {
  const document = JSON.parse(readFileSync(join(out, file), 'utf8'));
  for (const [field, type] of Object.entries(types)) {
    const value = document[field];
    objects.push([type, value]);
    // A field that the library does not know is not written again.
    const again = JSON.parse(JSON.stringify(api[`${type}ToJSON`](api[`${type}FromJSON`](value))));
    if (!isDeepStrictEqual(again, value)) fail(`${file}: ${field} is read as\n${JSON.stringify(again)}\nand is\n${JSON.stringify(value)}`);
  }
}
const errors = judge('exports', objects);
if (errors) fail(errors);

// A test of the test: each of these is wrong, and has to be found.
const first = objects.find(([, value]) => value.spec.template?.spec.domain.devices.gpus);
const wrong = [
  ['an unknown field', 'TS2353', (domain) => { domain.cpu.isolateEmulatorThreads = true; }],
  ['a text for a number', 'TS2322', (domain) => { domain.cpu.cores = '5'; }],
  ['a misplaced field', 'TS2353', (domain) => { domain.hugepages = { pageSize: '2Mi' }; }],
  ['a device without a name', 'TS2741', (domain) => { delete domain.devices.gpus[0].name; }],
];
for (const [what, code, change] of wrong) {
  const value = structuredClone(first[1]);
  change(value.spec.template.spec.domain);
  const found = judge('wrong', [[first[0], value]]);
  if (!found.includes(code) && !found.includes('TS2561')) fail(`${what} is not found: ${found || 'no error'}`);
}
console.log(`types: ${objects.length} objects of ${files.length} exports are of KubeVirt's types; ${wrong.length} wrong ones are found`);
