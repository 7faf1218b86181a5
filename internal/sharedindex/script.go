package sharedindex

import (
	"context"
	"fmt"
	"strings"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath/block"
)

// applyScript applies changes of rows. KEYS has the names of the records that could have the blocks of each change,
// from the row's first block on. ARGV[1] is the time to live in milliseconds. ARGV[2] has slots of three bytes each:
// all slots below the first one and all the others are dead, and their entries are dropped from each record that
// changes. Each further argument is one change: the number of its keys, the first block that changes, 1 to add or 0 to
// drop, the slot, and the plane.
//
// The script walks from record to record. A block that no record has extends the record that ends right before it, or
// begins a record of its own. Blocks at a record's end that nobody has are cut off.
const applyScript = `
local byte, sub, char, find = string.byte, string.sub, string.char, string.find
local ttl, floor, dead, k = ARGV[1], sub(ARGV[2], 1, 3), sub(ARGV[2], 4), 0
local bits = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768}
local function alive(e)
  local at, slot = 1, sub(e, 1, 3)
  if slot < floor then return false end
  while dead ~= '' do
    local i = find(dead, slot, at, true)
    if not i then return true end
    if (i - 1) % 3 == 0 then return false end
    at = i + 1
  end
  return true
end
local function save(r)
  if not r or not r.dirty then return end
  local out, all = {}, {}
  for i = 1, #r.entries, 6 do
    local e = sub(r.entries, i, i + 5)
    local hi, lo = byte(e, 5, 6)
    if (hi > 0 or lo > 0) and alive(e) then
      out[#out + 1] = e
      all[#all + 1] = hi * 256 + lo
    end
  end
  if #out == 0 then
    redis.call('DEL', r.name)
    return
  end
  local last = 1
  for i = 1, #all do
    for b = 16, last + 1, -1 do
      if all[i] >= bits[b] then last = b; break end
    end
  end
  if last < r.blocks then r.blocks = last; r.marks = sub(r.marks, 1, 4 * (last - 1)) end
  redis.call('SET', r.name, char(r.blocks) .. r.marks .. table.concat(out), 'PX', ttl)
end
local function has(v, b) return v % (2 * b) >= b end
local function touch(r, id, lo, hi, add)
  local at, i = 1
  while true do
    i = find(r.entries, id, at, true)
    if not i or (i - 1) % 6 == 0 then break end
    at = i + 1
  end
  local mask = 0
  if i then local h, l = byte(r.entries, i + 4, i + 5); mask = h * 256 + l end
  if not i and not add then return end
  for b = lo, hi do
    if has(mask, bits[b]) ~= add then mask = mask + (add and bits[b] or -bits[b]) end
  end
  local e = id .. char(math.floor(mask / 256), mask % 256)
  if i then r.entries = sub(r.entries, 1, i - 1) .. e .. sub(r.entries, i + 6) else r.entries = r.entries .. e end
  r.dirty = true
end
for a = 3, #ARGV do
  local op = ARGV[a]
  local n, from, add = byte(op, 1, 3)
  local id = sub(op, 4, 7)
  add = add == 1
  local all = {}
  for i = 1, n do all[i] = false end
  local got = redis.call('MGET', unpack(KEYS, k + 1, k + n))
  local r, open, o = nil, false, 0
  while o < n do
    local name, v = KEYS[k + o + 1], got[o + 1]
    local blocks = v and byte(v, 1)
    if v and (not blocks or blocks < 1 or blocks > 16 or #v < 1 + 4 * (blocks - 1) or (#v - 1 - 4 * (blocks - 1)) % 6 ~= 0) then
      v = false
    end
    if v then
      save(r)
      r = {name = name, blocks = blocks, marks = sub(v, 2, 1 + 4 * (blocks - 1)), entries = sub(v, 2 + 4 * (blocks - 1)), at = o}
      local e = o + 1
      while e < n and e - o < blocks and sub(r.marks, 4 * (e - o - 1) + 1, 4 * (e - o)) == sub(KEYS[k + e + 1], -4) do e = e + 1 end
      local lo = math.max(o, from)
      if lo < e then touch(r, id, lo - o + 1, e - o, add) end
      open = e - o == blocks
      o = e
    elseif add and o >= from then
      if open then
        r.blocks = r.blocks + 1
        r.marks = r.marks .. sub(name, -4)
      else
        save(r)
        r = {name = name, blocks = 1, marks = '', entries = '', at = o}
      end
      touch(r, id, o - r.at + 1, o - r.at + 1, true)
      open = true
      o = o + 1
    else
      open = false
      o = o + 1
    end
  end
  save(r)
  k = k + n
end
return #ARGV - 2`

// leanScript is applyScript for changes that only drop blocks: a server that is full runs it, too. Scripts with flags
// are known since Redis 7.0.
const leanScript = "#!lua flags=allow-oom\n" + applyScript

// describeScript writes a writer's description with a time to live, and returns the old one. A server that is full runs
// it, too.
const describeScript = `#!lua flags=allow-oom
local old = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return old`

// greetScript notes the time of a writer's last sign of life. It forgets writers that gave none since ARGV[3], and the
// whole list after ARGV[4] milliseconds without a writer.
const greetScript = `#!lua flags=allow-oom
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[3])
return redis.call('PEXPIRE', KEYS[1], ARGV[4])`

// slotsScript gives out ARGV[1] slots, and returns the series and the last slot. ARGV[2] is the name of a new series.
// It begins if the server has none, or if the present one has less slots than are needed: ARGV[3] is the greatest. The
// series ends after ARGV[4] milliseconds without a writer: then no entry of it is left.
const slotsScript = `#!lua flags=allow-oom
local series, last = unpack(redis.call('HMGET', KEYS[1], 'series', 'last'))
last = tonumber(last or nil)
if not series or not last or last + ARGV[1] > tonumber(ARGV[3]) then
  series, last = ARGV[2], 0
  redis.call('DEL', KEYS[1])
end
last = last + ARGV[1]
redis.call('HSET', KEYS[1], 'series', series, 'last', string.format('%d', last))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {series, last}`

// placedScript returns the series of the slots of learned placements, the lowest slot that counts, and the slot of each
// holder in the present period. The hash has a field "PERIOD HOLDER" with the slot of each holder in each period that
// counts. ARGV[1] is the name of a new series, ARGV[2] the greatest slot, ARGV[3] the length of a period in
// milliseconds, ARGV[4] the periods that count, and the further arguments are holders.
const placedScript = `
local hash, now = KEYS[1], redis.call('TIME')
local period = math.floor((now[1] * 1000 + math.floor(now[2] / 1000)) / ARGV[3])
local series, last, swept, floor = unpack(redis.call('HMGET', hash, 'series', 'last', 'swept', 'floor'))
last, swept, floor = tonumber(last or nil), tonumber(swept or nil), tonumber(floor or nil)
if not series or not last or not floor or last + #ARGV > tonumber(ARGV[2]) then
  redis.call('DEL', hash)
  series, last, swept, floor = ARGV[1], 0, period, 1
  redis.call('HSET', hash, 'series', series, 'swept', string.format('%d', period))
end
if swept ~= period then
  floor = last + 1
  local all = redis.call('HGETALL', hash)
  for i = 1, #all, 2 do
    local of = tonumber(string.match(all[i], '^(%d+) '))
    if of and (of <= period - ARGV[4] or of > period) then
      redis.call('HDEL', hash, all[i])
    elseif of then
      floor = math.min(floor, tonumber(all[i + 1]) or floor)
    end
  end
  redis.call('HSET', hash, 'swept', string.format('%d', period))
end
local out = {series, floor}
for a = 5, #ARGV do
  local field = string.format('%d ', period) .. ARGV[a]
  local slot = tonumber(redis.call('HGET', hash, field) or nil)
  if not slot then
    last = last + 1
    slot = last
    redis.call('HSET', hash, field, string.format('%d', slot))
  end
  out[#out + 1] = slot
end
redis.call('HSET', hash, 'last', string.format('%d', last), 'floor', string.format('%d', floor))
redis.call('PEXPIRE', hash, 2 * ARGV[3] * ARGV[4])
return out`

// forgetPlacedScript forgets the learned placements at a worker, ARGV[1], except those at its process ARGV[2].
const forgetPlacedScript = `#!lua flags=allow-oom
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  local process, url = string.match(field, '^%d+ (%S+) %d+ %d+ %S+ (.*)$')
  if url == ARGV[1] and process ~= ARGV[2] then redis.call('HDEL', KEYS[1], field) end
end
return 0`

// loadScripts makes the scripts known to all servers. It returns their names by their text.
func loadScripts(ctx context.Context, client valkey.Client) (map[string]string, error) {
	loaded := map[string]string{}
	for address, node := range client.Nodes() {
		for _, script := range []string{applyScript, leanScript, describeScript, greetScript, slotsScript, placedScript, forgetPlacedScript} {
			name, err := node.Do(ctx, node.B().ScriptLoad().Script(script).Build()).ToString()
			if _, refused := valkey.IsValkeyErr(err); refused && strings.Contains(err.Error(), "READONLY") {
				continue // a replica
			}
			if err != nil {
				return nil, fmt.Errorf("load a script at %s: %w", address, err)
			}
			loaded[script] = name
		}
	}
	return loaded, nil
}

// op is a change of one row: a slot gets or loses the blocks from keys[from] on, on a plane.
type op struct {
	slot    uint32
	plane   uint8
	add     bool
	from, n uint8
	keys    [rowLength]block.Key // from the row's first block on; n of them
}

// argument returns the change as the script takes it.
func (o *op) argument() string {
	b := make([]byte, 0, 8)
	b = append(b, o.n, o.from, 0)
	if o.add {
		b[2] = 1
	}
	return string(append(appendSlot(b, o.slot), o.plane))
}

// appendNames appends the names of the records that could have the change's blocks.
func (o *op) appendNames(dst []string, n names) []string {
	for _, k := range o.keys[:o.n] {
		dst = append(dst, n.record(o.keys[0], k))
	}
	return dst
}
