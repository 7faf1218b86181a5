// Drives the official OpenAI and Anthropic clients for Node, as driver.py drives those for Python: one JSON request a
// line in, one JSON answer a line out. It knows the call "any" only. Names of methods are those of Python
// (responses.input_items.list).
import { File } from 'node:buffer';
import { createInterface } from 'node:readline';

const modules = {};

async function clientOf(name, baseURL) {
  modules[name] ??= (await import(name === 'openai' ? 'openai' : '@anthropic-ai/sdk')).default;
  return new modules[name]({ baseURL, apiKey: 'none', maxRetries: 0, timeout: 120_000 });
}

const camel = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());

function fileOf(value) {
  return value?.$file === undefined ? value : new File([value.$file], 'file.bin', { type: 'application/octet-stream' });
}

async function call({ client: name, base, method, args = [], body = {} }) {
  let target = await clientOf(name, base);
  const steps = method.split('.').map(camel);
  const last = steps.pop();
  for (const step of steps) target = target[step];
  const named = Object.fromEntries(Object.entries(body).map(([key, value]) => [key, fileOf(value)]));
  const result = await target[last](...args, ...(Object.keys(named).length ? [named] : []));
  if (result instanceof Response) return { value: { bytes: (await result.arrayBuffer()).byteLength } };
  if (result?.constructor?.name === 'Stream') {
    const events = [];
    for await (const event of result) events.push(event);
    return { events };
  }
  const value = result?.data !== undefined && result.getPaginatedItems ? { data: result.data } : result;
  return { value };
}

for await (const line of createInterface({ input: process.stdin })) {
  let reply;
  try {
    reply = await call(JSON.parse(line));
  } catch (e) { // the test gets the error, and the driver must serve further calls
    reply = { error: { type: e.code === 'ERR_MODULE_NOT_FOUND' ? e.code : e.constructor.name, status: e.status ?? 0, message: String(e.message), body: e.error ?? null } };
  }
  process.stdout.write(JSON.stringify(reply) + '\n');
}
